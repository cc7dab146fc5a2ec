#!/usr/bin/env bash
# Reproduces tables of docs/results.md:
#
#   scripts/results.sh real OUT         pipelines on Home Depot: BM25, vectors, hybrid search, reranking; SOUK_DATA=DIR: docs/evaluation.md.
#                                       Goes on where it was stopped. DEVICE=cuda uses a GPU, PRECISION=bf16 trains encoders in it
#   scripts/results.sh icecat OUT       the same on the 87 queries of Icecat, without training; PRECISION=int8 is faster
#   scripts/results.sh market OUT       supervised stage on a simulated shop: BM25, untrained, SFT on clicks, SFT on judgements; OUT is new
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

main() {
    case $#:${1:-} in
    2:real | 2:icecat | 2:market) ;;
    *) fail "give the tables and a folder" "scripts/results.sh real OUT" "scripts/results.sh icecat OUT" "scripts/results.sh market OUT" ;;
    esac
    cargo build --release --workspace --bins
    souk=$(realpath "$(programs)/souk")
    "$1" "$2"
}

real() {
    local data out=$1 options=(--device "${DEVICE:-auto}" --precision "${PRECISION:-f32}")
    data=$(realpath "${SOUK_DATA:-.}")/home_depot
    [ -f "$data/corpus.jsonl" ] || fail "SOUK_DATA names no folder with home_depot" "docs/evaluation.md describes the folder."
    scripts/setup.sh models e5-small-v2
    mkdir -p "$out/models"
    ln -sfn "$MINILM" "$CACHE/models/e5-small-v2" "$out/models/"
    local plan=$PWD/configs/experiment-pipelines.toml
    (cd "$out" && "$souk" experiment --config "$plan" --data "$data" --out pipelines --jobs 1 "${options[@]}")
}

icecat() {
    local data out=$1 shop=$1/shop
    data=$(realpath "${SOUK_DATA:-.}")/icecat
    [ -f "$data/queries.jsonl" ] || fail "SOUK_DATA names no folder with icecat" "docs/evaluation.md describes the folder."
    scripts/setup.sh models e5-small-v2
    [ -d "$shop" ] || "$souk" import --format icecat --from "$data" --out "$shop"
    local measure=(evaluate --data "$shop" --split train --judge qrels --depth 1000)
    [ -d "$out/bm25" ] || "$souk" "${measure[@]}" --channel lexical --name BM25 --out "$out/bm25"
    local model channel run runs=()
    for model in "$MINILM" "$CACHE/models/e5-small-v2"; do
        for channel in dense hybrid; do
            run=$out/$(basename "$model")-$channel
            [ -d "$run" ] || "$souk" "${measure[@]}" --model "$model" --device "${DEVICE:-auto}" --precision "${PRECISION:-f32}" \
                --channel "$channel" --name "$(basename "$run")" --vectors "$out/vectors" --out "$run"
            runs+=("$run")
        done
    done
    "$souk" compare "$out/bm25" "${runs[@]}"
}

market() {
    mkdir "$1"
    local out=$1 shop=$1/shop base=$1/base lucene=(--set "search.lexical={k1=1.2,typos=false,details=0}")
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
