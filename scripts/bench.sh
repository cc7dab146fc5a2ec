#!/usr/bin/env bash
# Benchmarks Souk against the usual alternatives, both in the same run. Runs all stages, or those given as arguments:
#
#   speed       texts/s, against sentence-transformers
#   ranking     nDCG lost by int8
#   lexical     BM25 against bm25s: same answers, speed
#   models      size and speed of the kinds of models that Souk reads, with random weights (a quarter of an hour)
#   onnx        exports to ONNX: vectors and speed of the ONNX runtime beside Souk's; its Python packages take 5 GB
#   from_log    what souk start learns from a log alone, by raters' labels (50 minutes)
#   market      statistics of the simulated shop (docs/market.md), and BM25 on it
#   sft         supervised training, against sentence-transformers' trainer: texts/s, memory, time per phase
#   rewards     time of an R-GRPO step, against a supervised one: with an instant judge, a slow one, and a relevance model in
#               the same process; training and judging of a relevance model, against sentence-transformers' CrossEncoder
#   generation  tokens/s of a small decoder, against transformers' generate
#   writing     time of a GIRCSE and a GRACE step, against a plain PyTorch implementation
#   refine      cost of soft tokens: operations, time and memory, with and without a KV cache
#   candidates  candidate search in the catalogue: brute force against HNSW, by size
#   nearest     the index against hnswlib, faiss and usearch: build time, memory, queries/s at each recall
#   served      queries over HTTP end to end, against sentence-transformers and faiss behind uvicorn
#   first_hit   from the wheel to the first hit, in a new Python environment; downloads are not counted
#   growth      the search service at 10,000, 100,000 and 1,000,000 items (half an hour; BENCH_SVG=FILE for a plot)
#   sizing      disk and memory of the search service at 1,000 to 200,000 items, beside the formulas of docs/sizing.md
#   collective  time of an exchange between 1, 2 and 4 processes, by size; fitted latency and bandwidth
#   ingest      logs to examples, from a file and from Kafka, against a bare consumer; drawing examples; memory
#
#   SOUK_DATA=DIR       folder with the public datasets (docs/evaluation.md); ranking, lexical, from_log, nearest and served use
#                       DIR/home_depot, from_log also DIR/click_shop
#   BENCH_DATA=DIR      another BEIR folder for these stages; ranking and lexical need the split dev
#   BENCH_EVENTS=N      number of events in the log that ingest reads (default: 10000000; 3 GB in the temporary folder)
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

stages=(speed models onnx ranking lexical from_log market sft rewards generation writing refine candidates nearest served first_hit
    growth sizing collective ingest)
data=${BENCH_DATA:-${SOUK_DATA:+$SOUK_DATA/home_depot}}
work=$(mktemp -d)
# not inside $work: PostgreSQL's user cannot enter a private folder
services=$(mktemp -d "${TMPDIR:-/tmp}/souk-services-XXXXXX")
trap 'scripts/services.sh down "$services" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT

main() {
    [ $# -gt 0 ] || set -- "${stages[@]}"
    local stage
    for stage in "$@"; do
        [[ " ${stages[*]} " == *" $stage "* ]] || fail "no stage \`$stage\`" "Stages: ${stages[*]}"
    done
    cargo build --release --workspace --bins
    souk=$(programs)/souk
    for stage in "$@"; do
        echo "== $stage"
        "$stage"
        echo
    done
}

# skip WHAT: reports that the data folder lacks WHAT.
skip() {
    if [ -n "$data" ]; then
        echo "skipped: no shared data: $data has no $1 (BENCH_DATA names another BEIR folder)"
    else
        echo "skipped: no shared data: set SOUK_DATA to the folder with home_depot, or BENCH_DATA to a BEIR folder"
    fi
}

speed() {
    "$(scripts/python.sh)" benches/embed.py --souk "$souk" --model "$MINILM"
}

models() {
    "$(scripts/python.sh)" benches/models.py --souk "$souk" --minilm "$MINILM"
}

onnx() {
    "$(scripts/python.sh benches/onnx.txt)" benches/onnx.py --souk "$souk" --model "$MINILM" --kinds
}

ranking() {
    if [ -f "$data/qrels/dev.tsv" ]; then
        "$(scripts/python.sh)" benches/ranking.py --souk "$souk" --model "$MINILM" --data "$data"
    else
        skip qrels/dev.tsv
    fi
}

lexical() {
    if [ -f "$data/qrels/dev.tsv" ]; then
        "$(scripts/python.sh)" benches/lexical.py --lexical "$(bench_program lexical)" --data "$data"
    else
        skip qrels/dev.tsv
    fi
}

from_log() {
    local shop=${SOUK_DATA:-}/click_shop
    if [ -f "$data/qrels/dev.tsv" ] && [ -f "$shop/log.csv.gz" ]; then
        "$(scripts/python.sh)" benches/from_log.py --souk "$souk" --model "$MINILM" --items "$shop/items.csv" \
            --log "$shop/log.csv.gz" --data "$data" --work "$work/from_log"
    else
        skip "qrels/dev.tsv, or SOUK_DATA no click_shop"
    fi
}

market() {
    [ -d "$work/market" ] || "$souk" market --out "$work/market"
    cargo bench --quiet --bench market -- "$work/market"
    "$(scripts/python.sh)" benches/lexical.py --lexical "$(bench_program lexical)" --data "$work/market" --split test
}

sft() {
    [ -d "$work/market" ] || "$souk" market --out "$work/market"
    "$(scripts/python.sh)" benches/sft.py --souk "$souk" --model "$MINILM" --data "$work/market" speed
}

rewards() {
    "$souk" market --items 2000 --queries 600 --events 2000 --out "$work/small" >/dev/null
    "$souk" init --config configs/scratch-bert.toml --data "$work/small" --out "$work/base" >/dev/null
    "$souk" relevance train --model "$MINILM" --data "$work/small" --out "$work/judge" --set relevance.loss=ordinal \
        --set relevance.pooling=cls --set relevance.epochs=1 --set relevance.max_pairs=1000 >/dev/null
    python3 benches/rewards.py --souk "$souk" --model "$work/base" --data "$work/small" --own-judge "$work/judge" \
        --own-model "$MINILM"
    "$(scripts/python.sh)" benches/relevance.py --souk "$souk" --model "$MINILM" --data "$work/small"
}

candidates() {
    [ -d "$work/market" ] || "$souk" market --out "$work/market"
    RAYON_NUM_THREADS=1 cargo bench --quiet --bench candidates -- "$MINILM" "$work/market"
}

nearest() {
    if [ -f "$data/corpus.jsonl" ]; then
        "$(scripts/python.sh benches/requirements.txt)" benches/nearest.py --bench "$(bench_program nearest)" \
            --souk "$souk" --model "$MINILM" --data "$data"
    else
        skip corpus.jsonl
    fi
}

served() {
    if [ -f "$data/corpus.jsonl" ]; then
        local more
        more=$(dirname "$(dirname "$(scripts/python.sh benches/requirements.txt)")")
        PYTHONPATH=$(echo "$more"/lib/python3*/site-packages) "$(scripts/python.sh)" benches/served.py \
            --souk "$souk" --load "$(bench_program load -p souk-search)" --model "$MINILM" --data "$data"
    else
        skip corpus.jsonl
    fi
}

first_hit() {
    DIST=$work/dist scripts/dist.sh wheel >/dev/null
    python3 benches/first_hit.py --souk "$souk" --wheel "$work"/dist/*.whl --torch "${OWN_TORCH%/*}" --model "$MINILM"
}

growth() {
    "$(scripts/python.sh benches/requirements.txt)" benches/growth.py --souk "$souk" \
        --load "$(bench_program load -p souk-search)" --model "$MINILM" ${BENCH_SVG:+--svg "$BENCH_SVG"}
}

sizing() {
    python3 benches/sizing.py --souk "$souk"
}

# Makes a shop in $work/talked, and in $work/writer a small decoder trained on its texts.
writer() {
    [ ! -d "$work/writer" ] || return 0
    "$souk" market --seed 7 --items 3000 --queries 1500 --out "$work/talked" >/dev/null
    "$souk" init --config configs/scratch-writer.toml --data "$work/talked" --out "$work/mute" >/dev/null
    "$souk" train --config configs/next-token-market.toml --model "$work/mute" --data "$work/talked" --out "$work/writer" >/dev/null
}

writing() {
    writer
    "$(scripts/python.sh)" benches/writing.py --souk "$souk" --model "$work/writer" --data "$work/talked"
}

refine() {
    writer
    local larger=()
    for size in hidden_size=512 num_hidden_layers=12 num_attention_heads=8 num_key_value_heads=4 head_dim=64 \
        intermediate_size=1536 max_position_embeddings=640; do
        larger+=(--set "scratch.architecture.$size")
    done
    "$souk" init --config configs/scratch-writer.toml --data "$work/talked" --out "$work/larger" "${larger[@]}" >/dev/null
    "$(bench_program refine)" "$work/larger"
}

generation() {
    writer
    head -n 256 "$work/talked/corpus.jsonl" |
        python3 -c 'import json, sys; [print(json.loads(line)["title"]) for line in sys.stdin]' >"$work/titles"
    "$(scripts/python.sh)" benches/generation.py --generation "$(bench_program generation)" --model "$work/writer" \
        --texts "$work/titles"
}

collective() {
    cargo bench --quiet --bench collective
}

ingest() {
    if [ -z "${KAFKA_BROKERS:-}" ]; then
        scripts/services.sh up "$services" >/dev/null
        # shellcheck disable=SC1091
        . "$services/env"
    fi
    cargo bench --quiet -p souk-ingest --bench ingest -- "${BENCH_EVENTS:-10000000}" ${KAFKA_BROKERS:+"$KAFKA_BROKERS"}
}

main "$@"
