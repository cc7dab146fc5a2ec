#!/usr/bin/env bash
# Prints the Chromium that tests look at pages with: what SOUK_CHROMIUM names, else the one installed here, else Debian's,
# which is installed through apt where we are root. Prints nothing where none can be had.
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
