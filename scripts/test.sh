#!/usr/bin/env bash
# Runs all tests. The last line of the output is the total: `N passed, N failed, N skipped`.
# Arguments are passed to cargo test: `scripts/test.sh -p souk-native`.
#
# Starts Kafka, Redis, PostgreSQL, Milvus and S3 for the tests, on free ports and in a temporary folder (scripts/services.sh). A
# server whose variable is set (KAFKA_BROKERS, REDIS_URL, DATABASE_URL, MILVUS_URL, S3_URL) is used instead. Web pages are tested
# with the browser that scripts/browser.sh finds.
#
#   SOUK_DATA=DIR   folder with the public datasets (docs/evaluation.md); without it, the tests that need them are skipped
#
# A test that cannot run here (no GPU, no broker) appends one line, `NAME: REASON`, to the file in SOUK_SKIPPED and returns. It
# then counts as skipped, not as passed, like tests marked #[ignore].
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
services=$(mktemp -d "${TMPDIR:-/tmp}/souk-services-XXXXXX")
trap 'scripts/services.sh down "$services"; rm -rf "$work"' EXIT
trap 'exit 130' INT
export SOUK_SKIPPED=$work/skipped
# tests run in parallel already; more threads per test would only compete
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
: >"$SOUK_SKIPPED"

# no test calls NCCL on a machine without GPUs, but it must compile
status=0 no_nccl=
scripts/nccl.sh || status=$?
case $status in
0) ;;
3) no_nccl="NCCL's group: its headers could not be fetched" ;;
*) exit $status ;;
esac
# the test that needs them says so if they are missing
scripts/setup.sh models e5-small-v2 bge-small-en-v1.5 || true
SOUK_CHROMIUM=$(scripts/browser.sh)
export SOUK_CHROMIUM
# Each process would measure which products are faster, beside other tests, and compared runs could differ in the last digits.
export SOUK_PRODUCTS=packed
scripts/services.sh up "$services" >/dev/null
# shellcheck source=/dev/null
. "$services/env"

# All tests run with Milvus: a separate run would compile the library and most dependencies a second time.
if [ $# -eq 0 ]; then
    set -- --workspace --features souk/full,souk-cli/full,souk-search/full
    # the Python module, which cargo test does not build
    cargo build --release --lib "$@"
fi
status=0
cargo test --release --no-fail-fast "$@" 2>&1 | tee "$work/log" || status=$?

sed -n 's/^test \(.*\) \.\.\. ignored, \(.*\)/\1: \2/p; s/^test \(.*\) \.\.\. ignored$/\1: marked #[ignore]/p' \
    "$work/log" >"$work/ignored"
reported=$(sort -u "$SOUK_SKIPPED" | grep -c . || true)

echo
cat "$SOUK_SKIPPED" "$work/ignored" | grep . | sort -u | sed 's/^/skipped: /' || true
[ ! -f "$services/missing" ] || cat "$services/missing"
[ -z "$no_nccl" ] || echo "skipped: $no_nccl"
[ $status -eq 0 ] || echo "cargo test failed with exit code $status"
awk -v reported="$reported" '
    /^test result: / {
        for (i = 2; i <= NF; i++) {
            if ($i == "passed;") passed += $(i - 1)
            if ($i == "failed;") failed += $(i - 1)
            if ($i == "ignored;") ignored += $(i - 1)
        }
    }
    END { printf "%d passed, %d failed, %d skipped\n", passed - reported, failed, ignored + reported }
' "$work/log"
exit $status
