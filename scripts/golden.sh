#!/usr/bin/env bash
# Compares Souk with transformers, PEFT and sentence-transformers on fresh random models, with bm25s on fresh queries,
# and with ir_measures and scipy on fresh runs. The committed golden files cover only one seed.
#
#   SEED=N         the seed (default: from the clock)
#   REGENERATE=1   rewrites the committed golden files instead, with seed 0
#   SOUK_DATA=DIR  folder with the public datasets (docs/evaluation.md); DIR/home_depot is evaluated too
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

main() {
    python=$(scripts/python.sh)
    if [ -n "${REGENERATE:-}" ]; then
        "$python" tests/golden/make_golden.py --seed 0 --minilm "$MINILM"
        "$python" tests/golden/make_bm25.py --seed 0 --lexical "$(bench_program lexical)"
        "$python" tests/golden/make_metrics.py --seed 0
        say "rewrote the golden files in tests/golden; review the changes with git diff"
        return
    fi
    seed=${SEED:-$(date +%s)}
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    say "making golden files with seed $seed (SEED=$seed make golden repeats this run)"
    "$python" tests/golden/make_golden.py --out "$work/golden" --seed "$seed" --minilm "$MINILM"
    "$python" tests/golden/make_bm25.py --out "$work/golden" --seed "$seed" --lexical "$(bench_program lexical)"
    "$python" tests/golden/make_metrics.py --out "$work/golden" --seed "$seed"
    SOUK_GOLDEN=$work/golden cargo test --release -p souk --lib train::tests
    SOUK_GOLDEN=$work/golden cargo test --release --workspace --test integration -- golden:: minilm:: lexical:: report:: relevance::
    cargo build --release --workspace --bins
    local model
    for model in scratch-bert scratch-decoder; do
        "$(programs)/souk" init --config "configs/$model.toml" --set scratch.vocab=600 --data docs/demo --out "$work/$model"
    done
    # other libraries load a model in the precision of config.json, whatever it is stored in
    cp -r "$work/golden/st_last" "$work/st_last_bf16"
    sed -i 's/"dtype": "float32"/"dtype": "bfloat16"/' "$work/st_last_bf16/config.json"
    grep -q bfloat16 "$work/st_last_bf16/config.json"
    # a decoder with bidirectional attention
    cp -r "$work/golden/st_last" "$work/st_last_both"
    sed -i '1s/{/{"is_causal": false,/' "$work/st_last_both/config.json"
    for model in "$MINILM" "$work/st_last_bf16" "$work/st_last_both" "$work"/golden/st_{mean_dense,v6,cls,last,noprompt} "$work"/scratch-{bert,decoder}; do
        check_export "$model"
    done
    check_metrics
    say "all results agree (seed $seed)"
}

# Compares the metrics of `souk evaluate` with those of ir_measures: on a simulated shop, and on Home Depot if SOUK_DATA has it.
check_metrics() {
    local souk real=${SOUK_DATA:+$SOUK_DATA/home_depot} runs=("$work/run")
    souk=$(programs)/souk
    "$souk" market --seed "$seed" --items 2000 --queries 400 --events 100 --out "$work/shop"
    "$souk" evaluate --channel lexical --judge qrels --data "$work/shop" --out "$work/run"
    if [ -n "$real" ] && [ -d "$real" ]; then
        "$souk" evaluate --channel lexical --data "$real" --split dev --out "$work/real"
        runs+=("$work/real")
    else
        echo "skipped: metrics on real queries: no shared data: SOUK_DATA names no folder with home_depot"
    fi
    "$python" tests/golden/make_metrics.py --verify "${runs[@]}"
}

# check_export MODEL: exports the model and compares its vectors in sentence-transformers with Souk's.
check_export() {
    local model=$1 souk
    souk=$(programs)/souk
    local exported
    exported=$work/exported/$(basename "$model")
    "$souk" export --model "$model" --to sentence-transformers --out "$exported"
    "$python" - "$work" <<'PYTHON'
import json, pathlib, sys

texts = ["red running shoes", "a", "Wasserdichte Jacke, Größe L", "3/4 in. x 10 ft. copper pipe", "usb c cable " * 40]
folder = pathlib.Path(sys.argv[1])
(folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
(folder / "texts.txt").write_text("".join(text + "\n" for text in texts), encoding="utf-8")
PYTHON
    local kind
    for kind in query item; do
        "$souk" embed --model "$model" --kind $kind <"$work/texts.txt" >"$work/$kind.jsonl"
        local flags=()
        [ $kind = item ] || flags=(--query)
        "$python" tests/golden/make_golden.py --verify-export "$exported" --texts "$work/texts.json" \
            --vectors "$work/$kind.jsonl" "${flags[@]}"
    done
}

main
