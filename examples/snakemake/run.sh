#!/bin/sh
# Eight trainings of two kinds share two simulated devices of 2 GiB. Needs snakemake and scikit-learn on PATH.
set -eu
cd "$(dirname "$0")"

# A folder, a broker and profiles of our own, so that nothing else on this machine is touched.
folder=${1:-$(mktemp -d)}
if [ -z "${GRN_SOCKET:-}" ]; then
    private=$(mktemp -d)
    export GRN_SOCKET="$private/grn.sock" GRN_STATE_DIR="$private/state"
    trap 'grn broker stop || true; rm -r "$private"' EXIT
fi

export GRN_DEVICES=sim:2x2GiB,meter=rss
snakemake --executor grn -j 8 --quiet host rules progress --directory "$folder"
echo
grn profiles
echo "The figure is $folder/results/digits.svg"
