#!/usr/bin/env bash
# Builds Souk for machines without a compiler: `scripts/dist.sh wheel`, `tarball` or `folder` (scripts/dist.py says what they contain).
# Writes to target/dist, or to the folder in DIST.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

[ $# -gt 0 ] || fail "what shall be built?" "Give one or more of: wheel, tarball, folder."
for tool in strip objdump; do
    command -v $tool >/dev/null || fail "$tool is missing" "On Debian: apt-get install binutils"
done
scripts/setup.sh
[ -d "$OWN_TORCH" ] || fail "$OWN_TORCH is missing" "Unset LIBTORCH and LIBTORCH_USE_PYTORCH, so that setup downloads it."
cargo build --locked --release --workspace --bins --lib --features souk/full,souk-cli/full,souk-search/full
python3 scripts/dist.py --programs "$(programs)" --torch "${OWN_TORCH%/*}" --out "${DIST:-target/dist}" "$@"
