#!/bin/sh
# A job, its type, its policy, a lighter run to be measured, fewer devices: each as one command.
# Needs grn and scikit-learn on PATH.
set -eu
cd "$(dirname "$0")"

# A broker and profiles of our own, so that nothing else on this machine is touched.
if [ -z "${GRN_SOCKET:-}" ]; then
    folder=$(mktemp -d)
    export GRN_SOCKET="$folder/grn.sock" GRN_STATE_DIR="$folder/state"
    trap 'grn broker stop || true; rm -r "$folder"' EXIT
fi
export GRN_DEVICES=sim:2x2GiB,meter=rss
small="python train_forest.py --trees 2 --rows 2000"

echo '== a job: measured the first time, booked at its peak from then on'
grn run --ignore-arg seed -- $small --seed 1

echo '== a job type: what differs in its seed alone is one type'
grn run --quiet --ignore-arg seed "$small --seed 2" "$small --seed 3"

echo '== a policy: packed, two of a known size share one device'
grn run --quiet --ignore-arg seed --policy pack "$small --seed 4" "$small --seed 5"

echo '== a lighter run that is measured in place of the first one'
grn run --quiet --type forest -- $small --seed 6
grn run --quiet --type forest -- python train_forest.py --trees 4 --rows 2000 --seed 7

echo '== fewer devices: the mask of the caller narrows what a job can be given'
CUDA_VISIBLE_DEVICES=1 grn run --quiet --memory 100MiB 'echo "mask $CUDA_VISIBLE_DEVICES"'
grn run --quiet --gpus 0 'echo "mask \"$CUDA_VISIBLE_DEVICES\""'

grn profiles
