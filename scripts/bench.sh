#!/usr/bin/env bash
# Measures Souk beside what people would use instead, both sides in one run. All stages, or those that are named:
#
#   speed       texts/s beside sentence-transformers
#   ranking     what 8 bits cost in nDCG
#   lexical     the lexical channel beside bm25s: the same answers, how much faster
#   market      what the simulated shop is like (docs/market.md), and the lexical channel on it
#   sft         the supervised stage beside sentence-transformers' trainer: texts/s, memory, where the time goes
#   rewards     a step of R-GRPO beside a supervised one, and what a slow judge adds
#   generation  tokens/s that a small decoder writes, beside transformers' generate
#   writing     a step of GIRCSE and of GRACE beside a plain PyTorch re-statement
#   refine      what soft tokens cost: operations, time and memory, with a cache and without
#   candidates  searching a bank of the catalogue exactly and by a graph: when the graph pays
#   nearest     the index beside hnswlib, faiss and usearch: building, memory, queries/s at each recall
#   served      the whole way of a query over HTTP, beside sentence-transformers and faiss behind uvicorn
#   growth      the search service at 10,000, 100,000 and 1,000,000 items (half an hour; BENCH_SVG=FILE for a plot)
#   collective  what an exchange between 1, 2 and 4 processes costs, by size; latency and bandwidth that fit
#   ingest      logs to examples, from a file and from Kafka beside a bare consumer; drawing examples; memory
#
#   BENCH_DATA=DIR      a BEIR folder with a dev split for ranking and lexical (default: ../shared/data/home_depot)
#   BENCH_EVENTS=N      events of the log that ingest reads (default: 10000000; 3 GB in the temporary folder)
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

stages=(speed ranking lexical market sft rewards generation writing refine candidates nearest served growth collective ingest)
data=${BENCH_DATA:-../shared/data/home_depot}
no_data="skipped: no shared data: $data has no qrels/dev.tsv (BENCH_DATA names another BEIR folder)"
work=$(mktemp -d)
# beside, not below: PostgreSQL's own user cannot enter a private folder
services=$(mktemp -d "${TMPDIR:-/tmp}/souk-services-XXXXXX")
trap 'scripts/services.sh down "$services" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT

main() {
    [ $# -gt 0 ] || set -- "${stages[@]}"
    local stage
    for stage in "$@"; do
        [[ " ${stages[*]} " == *" $stage "* ]] || fail "no stage \`$stage\`" "There are: ${stages[*]}"
    done
    cargo build --release --workspace --bins
    souk=$(programs)/souk
    for stage in "$@"; do
        echo "== $stage"
        "$stage"
        echo
    done
}

speed() {
    "$(scripts/python.sh)" benches/embed.py --souk "$souk" --model "$MINILM"
}

ranking() {
    if [ -f "$data/qrels/dev.tsv" ]; then
        "$(scripts/python.sh)" benches/ranking.py --souk "$souk" --model "$MINILM" --data "$data"
    else
        echo "$no_data"
    fi
}

lexical() {
    if [ -f "$data/qrels/dev.tsv" ]; then
        "$(scripts/python.sh)" benches/lexical.py --lexical "$(bench_program lexical)" --data "$data"
    else
        echo "$no_data"
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
    python3 benches/rewards.py --souk "$souk" --model "$work/base" --data "$work/small"
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
        echo "skipped: no shared data: $data has no corpus.jsonl (BENCH_DATA names another BEIR folder)"
    fi
}

served() {
    if [ -f "$data/corpus.jsonl" ]; then
        local more
        more=$(dirname "$(dirname "$(scripts/python.sh benches/requirements.txt)")")
        PYTHONPATH=$(echo "$more"/lib/python3*/site-packages) "$(scripts/python.sh)" benches/served.py \
            --souk "$souk" --load "$(bench_program load -p souk-search)" --model "$MINILM" --data "$data"
    else
        echo "skipped: no shared data: $data has no corpus.jsonl (BENCH_DATA names another BEIR folder)"
    fi
}

growth() {
    "$(scripts/python.sh benches/requirements.txt)" benches/growth.py --souk "$souk" \
        --load "$(bench_program load -p souk-search)" --model "$MINILM" ${BENCH_SVG:+--svg "$BENCH_SVG"}
}

# A shop in $work/talked, and in $work/writer a small decoder that learned to write of it.
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
    cargo bench --quiet --bench ingest -- "${BENCH_EVENTS:-10000000}" ${KAFKA_BROKERS:+"$KAFKA_BROKERS"}
}

main "$@"
