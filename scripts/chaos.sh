#!/usr/bin/env bash
# Long chaos test of the whole loop (results: docs/reliability.md), with its own Kafka, Redis, PostgreSQL and Milvus: 100 SIGKILLs of
# the trainer at random moments, every server and both processes of the search service killed and restarted five times, the
# connection to the judge cut repeatedly, the disk filled once (needs root, to mount a small one), while a client searches. An
# undisturbed run gives the reference.
#
#   SOUK_CHAOS_KILLS=N   number of kills (default: 100; from 30 on, everything is restarted five times, on a simulated market
#                        instead of a small shop)
set -euo pipefail
cd "$(dirname "$0")/.."

services=$(mktemp -d "${TMPDIR:-/tmp}/souk-services-XXXXXX")
trap 'scripts/services.sh down "$services" >/dev/null 2>&1 || true' EXIT
scripts/services.sh up "$services" >/dev/null
# shellcheck source=/dev/null
. "$services/env"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} SOUK_CHAOS_KILLS=${SOUK_CHAOS_KILLS:-100}
cargo test --release --workspace --features souk/full,souk-cli/full,souk-search/full --test chaos -- --nocapture
