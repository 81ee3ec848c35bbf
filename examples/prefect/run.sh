#!/bin/sh
# The flow on two simulated devices of 2 GiB. Needs grn, Prefect and scikit-learn on PATH.
set -eu
cd "$(dirname "$0")"

# A broker and profiles of our own, so that nothing else on this machine is touched.
if [ -z "${GRN_SOCKET:-}" ]; then
    folder=$(mktemp -d)
    export GRN_SOCKET="$folder/grn.sock" GRN_STATE_DIR="$folder/state"
    trap 'grn broker stop || true; rm -r "$folder"' EXIT
fi
export GRN_DEVICES="${GRN_DEVICES:-sim:2x2GiB,meter=rss}"
export PREFECT_LOGGING_LEVEL="${PREFECT_LOGGING_LEVEL:-WARNING}"
export PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS=120 # its first start builds a database

python train.py "$@"
grn profiles
