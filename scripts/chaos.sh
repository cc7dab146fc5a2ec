#!/usr/bin/env bash
# The loop under attack, in its long form (docs/reliability.md has what was seen): real Kafka, Redis, PostgreSQL and Milvus of its
# own, 100 SIGKILLs of the trainer at random moments, every server and both processes of the search service killed and restarted
# five times, the wire to the judge cut again and again, the disk filled once (as root, who may mount a small one), a client that
# searches all along; and the same undisturbed, to be compared with.
#
#   SOUK_CHAOS_KILLS=N   (default: 100; from 30 on everything is restarted five times, on a simulated market instead of a
#                        small shop)
set -euo pipefail
cd "$(dirname "$0")/.."

services=$(mktemp -d "${TMPDIR:-/tmp}/souk-services-XXXXXX")
trap 'scripts/services.sh down "$services" >/dev/null 2>&1 || true' EXIT
scripts/services.sh up "$services" >/dev/null
# shellcheck source=/dev/null
. "$services/env"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} SOUK_CHAOS_KILLS=${SOUK_CHAOS_KILLS:-100}
cargo test --release --workspace --features souk/full,souk-cli/full,souk-search/full --test chaos -- --nocapture
