#!/bin/sh
# Each example on two simulated devices of 2 GiB. Needs grn on PATH, and nothing else.
set -eu
cd "$(dirname "$0")"

# A broker and profiles of our own, so that nothing else on this machine is touched.
if [ -z "${GRN_SOCKET:-}" ]; then
    folder=$(mktemp -d)
    export GRN_SOCKET="$folder/grn.sock" GRN_STATE_DIR="$folder/state"
    trap 'grn broker stop || true; rm -r "$folder"' EXIT
fi
export GRN_DEVICES="${GRN_DEVICES:-sim:2x2GiB,meter=rss}"

for example in job job_type policy profiling devices study; do
    echo "== $example"
    python "$example.py"
done
grn profiles
