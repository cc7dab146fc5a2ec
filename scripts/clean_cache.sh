#!/usr/bin/env bash
# Deletes the files that the other scripts put into the cache folder, for all checkouts; keeps all other files.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

[ -d "$CACHE" ] || exit 0
du -sh "$CACHE" >&2
rm -rf "$CACHE"/libtorch-* "$MINILM" "$CACHE/target" "$CACHE"/python-* "$CACHE/tools" "$CACHE"/kafka-* \
    "$CACHE"/opensearch-* "$CACHE"/solr-* "$CACHE"/.lock-* "$CACHE"/.libtorch-* "$CACHE"/.minilm-* "$CACHE"/.kafka-* \
    "$CACHE"/.opensearch-* "$CACHE"/.solr-*
rmdir "$CACHE/models" "$CACHE" 2>/dev/null || true
