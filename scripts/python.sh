#!/usr/bin/env bash
# Prints the path of a Python that has the packages of a requirements file, by default tests/golden/requirements.txt
# (sentence-transformers, transformers, PEFT, torch; several GB). The environment is made in the cache when first needed: of
# that file for `make golden` and `make bench`, of scripts/milvus.txt and scripts/s3.txt for `make test`, of
# scripts/manifests.txt and scripts/docs.txt for `make lint`.
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
    say "installing the Python packages of $requirements (once) into $folder"
    rm -rf "$folder"
    python3 -m venv "$folder" || fail "python3 cannot create a virtual environment" "On Debian: apt-get install python3-venv"
    mkdir "$folder/tmp"
    TMPDIR=$folder/tmp with_progress "$folder" "$folder/bin/python" -m pip install --quiet --disable-pip-version-check \
        --no-cache-dir --requirement "$requirements" || fail "the Python packages could not be installed" \
        "Check the network and the free space in $CACHE. pip's own settings apply (PIP_INDEX_URL and others)."
    rm -rf "$folder/tmp"
    touch "$folder/complete"
}

# The Python that it was made with may have been removed.
"$folder/bin/python" -c '' 2>/dev/null || rm -f "$folder/complete"
[ -f "$folder/complete" ] || locked python make_environment
echo "$folder/bin/python"
