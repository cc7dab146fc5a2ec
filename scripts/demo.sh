#!/usr/bin/env bash
# Runs the whole loop live on a simulated shop: searches and clicks -> supervised stage -> Retrieval-GRPO -> gate -> deployment
# to the search service. Then prints a table (BM25, untrained, SFT, SFT + R-GRPO), writes a report and serves the console until
# Ctrl-C.
#
#   scripts/demo.sh          with embedded defaults: files, SQLite, memory
#   scripts/demo.sh full     with Kafka, Redis, PostgreSQL and Milvus, which it starts
#
#   DEMO_EXIT=1              stop after the report
#   DEMO_DIR=DIR             keep all files there (default: a temporary folder, deleted at the end)
#   DEMO_PICTURES=DIR        draw the pictures of the console in docs/ there, with the browser that scripts/browser.sh finds
#   DEMO_PORT=N              port of the console (default: 8080); the trainer gets DEMO_PORT - 10
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

kind=${1:-embedded}
port=${DEMO_PORT:-8080}
out=${DEMO_DIR:-$(mktemp -d)}
mkdir -p "$out"
running=() services=
trap 'leave' EXIT
trap 'exit 130' INT

leave() {
    local pid
    for pid in "${running[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${running[@]}"; do wait "$pid" 2>/dev/null || true; done
    [ -z "$services" ] || scripts/services.sh down "$services" >/dev/null 2>&1 || true
    [ -n "${DEMO_DIR:-}" ] || rm -rf "$out"
}

main() {
    case $kind in
    embedded) cargo build --release --workspace --bins ;;
    full)
        cargo build --release --workspace --bins --features souk/full,souk-cli/full,souk-search/full
        services=$(mktemp -d "${TMPDIR:-/tmp}/souk-services-XXXXXX")
        scripts/services.sh up "$services" >/dev/null
        # shellcheck source=/dev/null
        . "$services/env"
        ;;
    *) fail "there is no demo \`$kind\`" "scripts/demo.sh, or scripts/demo.sh full" ;;
    esac
    souk=$(programs)/souk
    began=$SECONDS
    step "simulated shop with thirty days of search log"
    show "$souk" market --seed 7 --items 8000 --queries 3000 --out "$out/shop"
    show "$souk" init --config configs/scratch-bert.toml --set scratch.architecture.num_hidden_layers=2 \
        --data "$out/shop" --out "$out/base"
    step "search service with an untrained model; trainer reading the log"
    places
    # vectors alone: the demo shows what they learn
    start serve --config configs/search-embedded.toml --model "$out/base" --data "$out/shop" --state "$out/search" \
        --listen "127.0.0.1:$port" --set search.hybrid=false --set search.version=untrained \
        --set "search.training=http://127.0.0.1:$((port - 10))" "${stores[@]}" "${index[@]}"
    until_ready "127.0.0.1:$port/readyz"
    start trainer --config configs/trainer-market.toml --model "$out/base" --data "$out/shop" --state "$out/trainer" \
        --listen 127.0.0.1:$((port - 10)) --set 'trainer.pace={examples=4000, seconds=15, min_examples=1000}' \
        "${log[@]}" "${stores[@]}"
    until_ready "127.0.0.1:$((port - 10))/readyz"
    feed
    follow
    step "evaluation of each stage"
    measure
    say ""
    say "trained and evaluated in $((SECONDS - began)) s; report: $out/report/report.html"
    [ -z "${DEMO_PICTURES:-}" ] || draw
    if [ -z "${DEMO_EXIT:-}" ]; then
        say ""
        say "Console: http://127.0.0.1:$port   Search, or compare \`untrained\` with the trained model, and vote."
        say "Trainer: http://127.0.0.1:$((port - 10))/status   Stop with Ctrl-C."
        wait "${running[0]}"
    fi
}

draw() {
    local clients=services/search/tests/clients
    SOUK_CHROMIUM=$(scripts/browser.sh) "$(scripts/python.sh $clients/requirements.txt)" $clients/console.py \
        "http://127.0.0.1:$port" "" --query "red shoes" --pictures "$DEMO_PICTURES"
}

step() {
    say ""
    say "== $1"
}

show() {
    say "souk ${*:2}"
    "$@"
}

# start COMMAND FLAG...: starts a daemon that is stopped with the demo.
start() {
    say "souk $*"
    "$souk" "$@" >>"$out/$1.log" 2>&1 &
    running+=($!)
}

until_ready() {
    local tries=0
    until curl -sf "$1" >/dev/null; do
        kill -0 "${running[@]}" 2>/dev/null || { tail -n 5 "$out"/*.log >&2 && fail "a daemon has stopped"; }
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "$1 does not answer"
        sleep 0.2
    done
}

# Sets the flags for log, ledger, cache and index.
places() {
    stores=(--set "store.database=sqlite:$out/souk.db") log=(--from "$out/log.ndjson") index=()
    : >"$out/log.ndjson"
    [ "$kind" = full ] || return 0
    "$souk" db migrate --database "$DATABASE_URL"
    stores=(--set "store.database=$DATABASE_URL" --set "store.cache=$REDIS_URL")
    log=(--kafka "$KAFKA_BROKERS" --topic ubi)
    index=(--set search.index.type=milvus --set "search.index.address=$MILVUS_URL")
    "$souk" produce --kafka "$KAFKA_BROKERS" --topic ubi --partitions 4 </dev/null
}

# Appends the shoppers' searches and clicks to the log.
feed() {
    case $kind in
    embedded) cat "$out/shop/logs.ndjson" >>"$out/log.ndjson" ;;
    full) "$souk" produce --kafka "$KAFKA_BROKERS" --topic ubi <"$out/shop/logs.ndjson" ;;
    esac
}

# Prints the trainer's progress until its first round has ended and its model is served.
follow() {
    python3 - "127.0.0.1:$((port - 10))" "127.0.0.1:$port" <<'PYTHON'
import json, sys, time, urllib.request

trainer, search = sys.argv[1:]
ask = lambda place: json.load(urllib.request.urlopen(f"http://{place}", timeout=30))
told = None
while True:
    status = ask(f"{trainer}/status")
    line = status["doing"]
    if status["stage"]:
        loss = "" if status["loss"] is None else f", loss {status['loss']:.3f}"
        line += f" {status['stage']}: step {status['step']} of {status['steps']}{loss}"
    elif status["doing"] == "waiting":
        line += f", {status['log']['examples']} clicks read"
    key = (status["doing"], status["stage"], status["step"] // 20)
    if key != told:
        print(f"  {line}", file=sys.stderr, flush=True)
        told = key
    for name, alarm in status["alarms"].items():
        if name in ("stage", "round"):
            sys.exit(f"{name}: {alarm['problem']}")
    last = status["last_round"]
    if last:
        break
    time.sleep(0.5)
if not last["passed"]:
    sys.exit("the gate rejected the model: " + "; ".join(last["reasons"]))
print(f"  `{last['version']}` passed its gate", file=sys.stderr, flush=True)
while ask(f"{search}/models")["served"]["version"] != last["version"]:
    time.sleep(0.5)
print(f"  `{last['version']}` is served", file=sys.stderr, flush=True)
PYTHON
}

measure() {
    local round=$out/trainer/rounds/000001
    "$souk" evaluate --channel lexical --data "$out/shop" --depth 600 --out "$out/bm25" >/dev/null
    "$souk" evaluate --model "$out/base" --name untrained --data "$out/shop" --depth 600 --out "$out/untrained" >/dev/null
    "$souk" evaluate --model "$round/1-sft" --name SFT --data "$out/shop" --depth 600 --out "$out/sft" >/dev/null
    "$souk" evaluate --model "$round/2-rgrpo" --name "SFT + R-GRPO" --data "$out/shop" --depth 600 --out "$out/report" \
        --baseline "$out/bm25" "$out/untrained" "$out/sft" >/dev/null
    python3 - "$out"/bm25 "$out"/untrained "$out"/sft "$out"/report <<'PYTHON'
import json, sys

runs = [json.load(open(f"{folder}/metrics.json", encoding="utf-8")) for folder in sys.argv[1:]]
for metric in "hitrate@600", "goodrate@100":
    names = ["all", *runs[0]["slices"]]
    print(f"\n  {metric:<16}" + "".join(f"{name:>12}" for name in names))
    for run in runs:
        values = [run["overall"], *run["slices"].values()]
        print(f"  {run['model']:<16}" + "".join(f"{value[metric]:>12.1f}" for value in values))
PYTHON
}

main
