#!/bin/sh
# Twelve trainings of three kinds share two simulated devices of 2 GiB. Needs grn and scikit-learn on PATH.
set -eu
cd "$(dirname "$0")"

# A broker and profiles of our own, so that nothing else on this machine is touched.
if [ -z "${GRN_SOCKET:-}" ]; then
    folder=$(mktemp -d)
    export GRN_SOCKET="$folder/grn.sock" GRN_STATE_DIR="$folder/state"
    trap 'grn broker stop || true; rm -r "$folder"' EXIT
fi

grn run --devices sim:2x2GiB,meter=rss --ignore-arg seed --file jobs.txt
echo
grn profiles
echo
grn status
