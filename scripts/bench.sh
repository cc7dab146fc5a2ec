#!/usr/bin/env bash
# Speed beside sentence-transformers in one run, and what 8 bits cost in ranking.
#
#   BENCH_DATA=DIR   a BEIR folder with a dev split for the ranking part (default: ../shared/data/home_depot)
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

python=$(scripts/python.sh)
cargo build --release --workspace --bins
souk=$(programs)/souk
data=${BENCH_DATA:-../shared/data/home_depot}

echo "== speed"
"$python" benches/embed.py --souk "$souk" --model "$MINILM"
echo
echo "== ranking in 8 bits"
if [ -f "$data/qrels/dev.tsv" ]; then
    "$python" benches/ranking.py --souk "$souk" --model "$MINILM" --data "$data"
else
    echo "skipped: no shared data: $data has no qrels/dev.tsv (BENCH_DATA names another BEIR folder)"
fi
