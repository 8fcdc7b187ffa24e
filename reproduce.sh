#!/bin/sh
# Recomputes every figure of the committed runs from their raw files, derives all reports and figures again, and ends with a
# clean tree or says what differs. Needs cargo and git; no root, no BPF, no particular kernel.
set -eu
cd "$(dirname "$0")"
cargo build --quiet --release --package xtask --package throttle-user
programs=$(cargo metadata --quiet --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release
"$programs/xtask" verify
for run in results/*/*/run.json; do
    # 1 is a run that is not whole or not right: derived all the same.
    "$programs/throttle" report "$(dirname "$run")" >/dev/null || [ $? -eq 1 ]
done
"$programs/xtask" verify --write
changed=$(git status --porcelain -- results)
if [ -n "$changed" ]; then
    echo "derived again, these files of results/ are not as committed:"
    echo "$changed"
    exit 1
fi
echo "reproduced: every derived file is as committed, byte for byte"
