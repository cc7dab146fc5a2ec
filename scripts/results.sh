#!/usr/bin/env bash
# Reproduces a table of docs/results.md in a new folder:
#
#   scripts/results.sh market OUT       supervised stage on a simulated shop: BM25, untrained, SFT on clicks, SFT on judgements
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

main() {
    [ $# -eq 2 ] && [ "$1" = market ] || fail "give the table and a new folder" "scripts/results.sh market OUT"
    cargo build --release --workspace --bins
    souk=$(programs)/souk
    mkdir "$2"
    market "$2"
}

market() {
    local out=$1 shop=$1/shop base=$1/base lucene=(--set "search.lexical={k1=1.2,typos=false}")
    "$souk" market --seed 7 --items 20000 --queries 5000 --out "$shop"
    "$souk" ingest --from "$shop/logs.ndjson" --data "$shop"
    "$souk" init --config configs/scratch-bert.toml --data "$shop" --out "$base"
    local stage=(train --config configs/sft-market.toml --model "$base" --data "$shop")
    local clicks=(--set train.pairs=examples --set train.epochs=6 --set train.optimizer.learning_rate=5e-4)
    "$souk" "${stage[@]}" --out "$out/judgements"
    "$souk" "${stage[@]}" --out "$out/clicks" "${clicks[@]}"
    "$souk" evaluate --channel lexical "${lucene[@]}" --data "$shop" --out "$out/run-bm25"
    local model
    for model in base clicks judgements; do
        "$souk" evaluate --model "$out/$model" "${lucene[@]}" --data "$shop" --out "$out/run-$model"
    done
    "$souk" compare "$out"/run-{bm25,base,clicks,judgements}
}

main "$@"
