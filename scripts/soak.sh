#!/usr/bin/env bash
# The long forms of what the search service must survive (docs/reliability.md has what was seen):
#
#   1. 50 SIGKILLs amid writes, every acknowledged one looked for after each
#   2. 2,000 requests and more that schemathesis makes up from the document
#   3. minutes under load on 100,000 items: 20 swaps, 1,000 writes a minute, Redis and PostgreSQL killed in turn, then five
#      times what can be answered
#   4. the same for a fifth of the time on 1,000 items in Milvus Lite, which is killed three times
#
# `scripts/soak.sh 3 4` does some of them.
#
#   SOAK_SECONDS=N   of the third (default: 600)
#   SOAK_DATA=DIR    a BEIR folder for it (default: a simulated shop of 100,000 items, which takes minutes to embed)
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

work=$(mktemp -d)
services=$(mktemp -d "${TMPDIR:-/tmp}/souk-services-XXXXXX")
server=
trap '[ -z "$server" ] || kill "$server"; scripts/services.sh down "$services" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
address=127.0.0.1:8477
seconds=${SOAK_SECONDS:-600}
# as the tests are built, so that what they compiled is used
features=(--workspace --features "souk/full,souk-cli/full,souk-search/full")

main() {
    [ $# -gt 0 ] || set -- 1 2 3 4
    local part
    for part in "$@"; do
        case $part in
        1) kills ;;
        2) made_up ;;
        3) embedded ;;
        4) on_milvus ;;
        *) fail "no part \`$part\`" "There are 1 to 4: scripts/soak.sh begins with what they are" ;;
        esac
    done
}

kills() {
    echo "== kills"
    SOUK_KILLS=50 cargo test --release "${features[@]}" --test integration crash:: -- --nocapture
}

made_up() {
    echo "== what schemathesis makes up"
    SOUK_CHROMIUM=$(scripts/browser.sh)
    export SOUK_CHROMIUM
    SOUK_CASES=2000 cargo test --release "${features[@]}" --test integration clients::other -- --nocapture
}

embedded() {
    echo "== load"
    build
    local data=${SOAK_DATA:-$work/shop}
    [ -f "$data/corpus.jsonl" ] || shop 100000 "$data"
    load "$data" "$seconds" "$PWD/scripts/services.sh restart redis $services && $PWD/scripts/services.sh restart postgres $services" \
        --config configs/search-embedded.toml --set "store.database=$DATABASE_URL"
}

on_milvus() {
    echo "== load on Milvus"
    build
    shop 1000 "$work/small"
    load "$work/small" $((seconds / 5)) "$PWD/scripts/services.sh restart milvus $services" \
        --config configs/search-milvus.toml --set "store.database=sqlite:$work/milvus.db" \
        --set "search.index.address=$MILVUS_URL"
}

# The program, and what it needs beside it.
build() {
    cargo build --release "${features[@]}" --bins
    souk=$(programs)/souk
    [ -f "$services/env" ] || scripts/services.sh up "$services" >/dev/null
    # shellcheck source=/dev/null
    . "$services/env"
    "$souk" db migrate --database "$DATABASE_URL"
}

shop() {
    "$souk" market --items "$1" --queries 2000 --events 1000 --out "$2"
}

# load DATA SECONDS RESTARTS FLAG...: a service of two versions, started with these flags
load() {
    local data=$1 time=$2 restarts=$3 model state
    shift 3
    model=$(realpath "$MINILM")
    state=$(mktemp -d "$work/state-XXXXXX")
    python3 - "$data/queries.jsonl" >"$work/bodies" <<'PYTHON'
import json, sys

for line in open(sys.argv[1], encoding="utf-8"):
    print(json.dumps({"query": json.loads(line)["text"], "k": 10}))
PYTHON
    "$souk" serve "$@" --model "$model" --data "$data" --state "$state" \
        --listen "$address" --set search.version=one --set search.promote_unmeasured=true \
        --set "store.cache=$REDIS_URL" &
    server=$!
    until curl -sf "$address/readyz" >/dev/null; do
        kill -0 "$server" && sleep 1
    done
    curl -sf "$address/models" -d "{\"version\": \"two\", \"path\": \"$model\"}" >/dev/null
    curl -sf -X POST "$address/models/two/promote" >/dev/null
    until curl -sf "$address/models" | grep -q '"served":{"version":"two"'; do
        sleep 1
    done
    cargo bench --quiet "${features[@]}" --bench soak -- "$address" "$server" "$work/bodies" "$time" one two "$restarts"
    kill "$server"
    wait "$server" || true
    server=
}

main "$@"
