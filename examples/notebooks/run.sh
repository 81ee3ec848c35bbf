#!/bin/sh
# Four trainings and a comparison, notebooks all, worked off by the queue on two simulated devices.
# Needs: pip install 'grn-plugins[examples,notebook]'.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'grn queue stop --now; grn broker stop; rm -r "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A broker and a queue of their own: nothing else on this machine is touched.
export GRN_SOCKET="$work/sock" GRN_STATE_DIR="$work/state" GRN_DEVICES="sim:2x2GiB,meter=rss"

# The queue is on disk: it can be filled before anybody works it off.
trainings=""
for neighbours in 1 3 5 7; do
    id=$(grn queue add --quiet --type train.ipynb -o "$work/train-$neighbours.ipynb" \
        -p neighbours "$neighbours" -p results "$work/results" train.ipynb)
    trainings="$trainings --after $id"
done
# shellcheck disable=SC2086 # several words on purpose
grn queue add --quiet $trainings --gpus 0 -o "$work/compare.ipynb" -p results "$work/results" compare.ipynb >/dev/null

grn queue ls
grn queue start --drain
grn queue wait
echo
grn queue ls
echo
grn queue log 5
echo
grn profiles
python - "$work/compare.ipynb" <<'PYTHON'
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    cells = json.load(file)["cells"]
print("".join("".join(output["text"]) for output in cells[-1]["outputs"]))
PYTHON
