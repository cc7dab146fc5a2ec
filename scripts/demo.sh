#!/usr/bin/env bash
# Embeds a small catalogue and searches it, on the command line.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

cargo build --release --workspace --bins
souk=$(programs)/souk
model=$MINILM
out="$(mktemp -d)"
trap 'rm -rf "$out"' EXIT

"$souk" --version
echo
echo "souk index --model all-MiniLM-L6-v2 --data docs/demo --out INDEX"
"$souk" index --model "$model" --data docs/demo --out "$out/index"

for query in "desk for a small room" "what makes hair black" "stop my cat scratching the sofa" "quiet typing at night"; do
    echo
    echo "souk search --model all-MiniLM-L6-v2 --index INDEX -k 3 \"$query\""
    "$souk" search --model "$model" --index "$out/index" -k 3 "$query"
done
