#!/usr/bin/env bash
# Prints the Python that has the packages of a file: by default tests/golden/requirements.txt (sentence-transformers,
# transformers, PEFT, torch; several GB). Made in the cache on first need: of that file for `make golden` and `make bench`, of
# scripts/milvus.txt and scripts/s3.txt for `make test`, of scripts/manifests.txt for `make lint`.
#
#   scripts/python.sh [REQUIREMENTS]
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

requirements=${1:-tests/golden/requirements.txt}
folder=$(python_folder "$requirements")

make_environment() {
    [ ! -f "$folder/complete" ] || return 0
    say "making the Python environment of $requirements (once): $folder"
    rm -rf "$folder"
    python3 -m venv "$folder" || fail "python3 cannot make a virtual environment" "On Debian: apt-get install python3-venv"
    mkdir "$folder/tmp"
    TMPDIR=$folder/tmp with_progress "$folder" "$folder/bin/python" -m pip install --quiet --disable-pip-version-check \
        --no-cache-dir --requirement "$requirements" || fail "the Python packages could not be installed" \
        "Check the network and the space in $CACHE; pip's own settings, PIP_INDEX_URL and others, are respected."
    rm -rf "$folder/tmp"
    touch "$folder/complete"
}

# The Python that it was made with may be gone.
"$folder/bin/python" -c '' 2>/dev/null || rm -f "$folder/complete"
[ -f "$folder/complete" ] || locked python make_environment
echo "$folder/bin/python"
