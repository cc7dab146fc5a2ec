#!/usr/bin/env bash
# Renders README.md, docs/ and the other documents as a static site: open index.html in target/site, or in the folder in DIST.
# A broken link or a missing anchor is an error. mkdocs.yml has the settings.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

MERMAID_VERSION=11.17.2
mermaid=$CACHE/mermaid-$MERMAID_VERSION.min.js

# Only npm has the file that browsers load.
install_mermaid() {
    [ ! -f "$mermaid" ] && command -v npm >/dev/null || return 0
    local folder
    folder=$(mktemp -d)
    (cd "$folder" && timeout 120 npm pack --silent "mermaid@$MERMAID_VERSION" >/dev/null && tar xzf mermaid-*.tgz package/dist/mermaid.min.js) &&
        mv "$folder/package/dist/mermaid.min.js" "$mermaid" || true
    rm -rf "$folder"
}

python=$(scripts/python.sh scripts/docs.txt)
[ -f "$mermaid" ] || locked mermaid install_mermaid
[ -f "$mermaid" ] || say "note: npm could not fetch Mermaid $MERMAID_VERSION: without a network, pages show diagrams as text"
site=$(realpath -m "${DIST:-target/site}")
# The variable hides a note by the theme about mkdocs 2.
MERMAID=$([ ! -f "$mermaid" ] || echo "$mermaid") NO_MKDOCS_2_WARNING=1 \
    "$python" -m mkdocs build --strict --clean --site-dir "$site"
