#!/usr/bin/env bash
# Speed beside sentence-transformers in one run, what 8 bits cost in ranking, the lexical channel beside bm25s, and what
# the simulated shop is like (`scripts/bench.sh market` does the last alone, without Python).
#
#   BENCH_DATA=DIR      a BEIR folder with a dev split for ranking and lexical (default: ../shared/data/home_depot)
#   BENCH_MARKET=DIR    a market with a test split, for the lexical part as well
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

market() {
    local shop
    shop=$(mktemp -d)
    "$(programs)/souk" market --out "$shop"
    cargo bench --quiet --bench market -- "$shop"
    rm -r "$shop"
}

cargo build --release --workspace --bins
if [ "${1:-}" = market ]; then
    market
    exit
fi
python=$(scripts/python.sh)
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
echo
echo "== the lexical channel"
lexical=$(lexical_bench)
if [ -f "$data/qrels/dev.tsv" ]; then
    "$python" benches/lexical.py --lexical "$lexical" --data "$data"
else
    echo "skipped: no shared data: $data has no qrels/dev.tsv (BENCH_DATA names another BEIR folder)"
fi
if [ -n "${BENCH_MARKET:-}" ]; then
    "$python" benches/lexical.py --lexical "$lexical" --data "$BENCH_MARKET" --split test
else
    echo "skipped: no market: BENCH_MARKET names a folder that \`souk market\` wrote"
fi
echo
echo "== market"
market
