#!/usr/bin/env bash
# The long forms of what the search service must survive (docs/reliability.md has what was seen):
#
#   1. 50 SIGKILLs amid writes, every acknowledged one looked for after each
#   2. 2,000 requests and more that schemathesis makes up from the document
#   3. minutes under load on 100,000 items: 20 swaps, 1,000 writes a minute, Redis and PostgreSQL killed in turn, then five
#      times what can be answered
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

main() {
    SOUK_CHROMIUM=$(scripts/browser.sh)
    export SOUK_CHROMIUM
    echo "== kills"
    SOUK_KILLS=50 cargo test --release -p souk-search --test crash -- --nocapture
    echo "== what schemathesis makes up"
    SOUK_CASES=2000 cargo test --release -p souk-search --test clients other -- --nocapture
    echo "== load"
    cargo build --release --workspace --bins
    souk=$(programs)/souk
    load
}

load() {
    local data=${SOAK_DATA:-$work/shop} model
    [ -f "$data/corpus.jsonl" ] || "$souk" market --items 100000 --queries 2000 --events 1000 --out "$data"
    model=$(realpath "$MINILM")
    python3 - "$data/queries.jsonl" >"$work/bodies" <<'PYTHON'
import json, sys

for line in open(sys.argv[1], encoding="utf-8"):
    print(json.dumps({"query": json.loads(line)["text"], "k": 10}))
PYTHON
    scripts/services.sh up "$services" >/dev/null
    # shellcheck source=/dev/null
    . "$services/env"
    "$souk" db migrate --database "$DATABASE_URL"
    "$souk" serve --config configs/search-embedded.toml --model "$model" --data "$data" --state "$work/state" \
        --listen "$address" --set search.version=one --set search.promote_unmeasured=true \
        --set "store.database=$DATABASE_URL" --set "store.cache=$REDIS_URL" &
    server=$!
    until curl -sf "$address/readyz" >/dev/null; do
        kill -0 "$server" && sleep 1
    done
    curl -sf "$address/models" -d "{\"version\": \"two\", \"path\": \"$model\"}" >/dev/null
    curl -sf -X POST "$address/models/two/promote" >/dev/null
    until curl -sf "$address/models" | grep -q '"served":{"version":"two"'; do
        sleep 1
    done
    cargo bench --quiet -p souk-search --bench soak -- "$address" "$server" "$work/bodies" "${SOAK_SECONDS:-600}" one two \
        "scripts/services.sh restart redis $services && scripts/services.sh restart postgres $services"
}

main
