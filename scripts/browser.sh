#!/usr/bin/env bash
# Prints the path of the Chromium that tests use: SOUK_CHROMIUM, else an installed one, else Debian's, which is installed through
# apt if run as root. Prints nothing if there is none.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

installed() {
    command -v chromium || command -v chromium-browser || command -v google-chrome || true
}

browser=${SOUK_CHROMIUM:-$(installed)}
if [ -z "$browser" ] && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    scripts/setup.sh packages chromium >&2 || true
    browser=$(installed)
fi
[ -z "$browser" ] || echo "$browser"
