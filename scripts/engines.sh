#!/usr/bin/env bash
# Tests docs/integrations.md against real OpenSearch and Solr: installs both from Maven Central into the cache folder, starts each on
# free ports of 127.0.0.1 beside a search service, runs the page's commands and requests, and compares the hits with Souk's exact search.
#
#   scripts/engines.sh [opensearch|solr]...    by default both
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

# The page's vectors have 384 dimensions; a query prompt shows whether an engine sends it.
MODEL=$CACHE/models/e5-small-v2

main() {
    local name folder wanted=("$@") homes=()
    [ $# -gt 0 ] || wanted=(opensearch solr)
    for name in "${wanted[@]}"; do
        [[ $name =~ ^(opensearch|solr)$ ]] || fail "no engine \`$name\`" "Engines: opensearch, solr"
        scripts/setup.sh engines "$name" || true
        if "has_$name"; then
            folder=${name^^}
            homes+=("--$name" "${!folder}")
        else
            echo "skipped: $name: it could not be installed; it needs a JDK 17 or newer (javac) and Maven"
        fi
    done
    [ ${#homes[@]} -gt 0 ] || return 0
    scripts/setup.sh models e5-small-v2
    cargo build --release --workspace --bins
    export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 MODEL PATH
    PATH=$(programs):$PATH
    exec python3 -B scripts/engines/check.py "${homes[@]}"
}

main "$@"
