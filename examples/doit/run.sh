#!/bin/sh
# Nine trainings of three kinds share two simulated devices of 2 GiB. Needs grn, doit and scikit-learn on PATH.
set -eu
cd "$(dirname "$0")"

# A broker, profiles and results of our own, so that nothing else on this machine is touched.
if [ -z "${GRN_SOCKET:-}" ]; then
    folder=$(mktemp -d)
    export GRN_SOCKET="$folder/grn.sock" GRN_STATE_DIR="$folder/state"
    trap 'grn broker stop || true; rm -r "$folder"' EXIT
fi
export GRN_DEVICES="${GRN_DEVICES:-sim:2x2GiB,meter=rss}"

echo '== nothing is known: the first training of each framework is measured alone'
doit forget -a >/dev/null 2>&1 || true
rm -rf data runs
doit -n 9 -P thread "$@"

echo '== everything is up to date'
doit -n 9 -P thread "$@"

echo '== other seeds would share at once: what was learnt'
grn profiles
