# shellcheck shell=bash disable=SC2034
# Paths outside the repository, and shared functions. Sourced by the other scripts from the repository root; changes nothing.

TORCH_VERSION=2.11.0
CACHE=${SOUK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/souk}
OWN_TORCH=$CACHE/libtorch-$TORCH_VERSION/torch
CUDA_HEADERS=$CACHE/cuda-headers-13.0.96
MINILM=$CACHE/models/all-MiniLM-L6-v2
KAFKA_VERSION=$(sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' scripts/kafka/pom.xml)
KAFKA=$CACHE/kafka-$KAFKA_VERSION
OPENSEARCH_VERSION=$(sed -n 's:.*<opensearch.version>\(.*\)</opensearch.version>.*:\1:p' scripts/engines/opensearch.xml)
OPENSEARCH=$CACHE/opensearch-$OPENSEARCH_VERSION
SOLR_VERSION=$(sed -n 's:.*<solr.version>\(.*\)</solr.version>.*:\1:p' scripts/engines/solr.xml)
SOLR=$CACHE/solr-$SOLR_VERSION

case $CACHE in
/*) ;;
*)
    echo "error: the cache folder $CACHE is a relative path; set SOUK_CACHE to an absolute path" >&2
    exit 1
    ;;
esac

# python_folder REQUIREMENTS: folder of the environment that scripts/python.sh makes for this file.
python_folder() {
    python3 - "$1" "$CACHE" <<'PYTHON'
import hashlib, sys

digest = hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest()[:12]
print("%s/python-%s-%d.%d" % (sys.argv[2], digest, *sys.version_info[:2]))
PYTHON
}

# Folder of the built programs `souk` and `souk-engine`.
programs() {
    echo "${CARGO_TARGET_DIR:-$PWD/target}/release"
}

# has_NAME: whether this server can be started on this machine.
has_kafka() {
    [ -d "$KAFKA" ] && has_java
}

has_java() {
    local version
    version=$(java -XX:-UsePerfData -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
    [ "${version:-0}" -ge 17 ]
}

# Java with a compiler, which scripts/engines needs.
has_jdk() {
    has_java && command -v javac >/dev/null
}

has_opensearch() {
    [ -d "$OPENSEARCH" ] && has_jdk
}

has_solr() {
    [ -d "$SOLR" ] && has_jdk
}

has_redis() {
    command -v redis-server >/dev/null
}

has_postgres() {
    [ -n "$(postgres_programs)" ]
}

has_milvus() {
    [ -f "$(python_folder scripts/milvus.txt)/complete" ]
}

has_s3() {
    [ -f "$(python_folder scripts/s3.txt)/complete" ]
}

# Folder of PostgreSQL's programs, newest installed version; Debian does not add it to PATH.
postgres_programs() {
    local initdb
    initdb=$(command -v initdb || find /usr/lib/postgresql -path '*/bin/initdb' 2>/dev/null | sort -V | tail -n 1)
    [ -z "$initdb" ] || dirname "$(readlink -f "$initdb")"
}

# bench_program NAME [-p PACKAGE]: builds benches/NAME.rs and prints the path of the program.
bench_program() {
    cargo bench --quiet "${@:2}" --bench "$1" --no-run --message-format=json |
        sed -n '/"kind":\["bench"\]/s/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
}

say() {
    printf '%s\n' "$*" >&2
}

fail() {
    printf 'error: %s\n' "$1" >&2
    shift
    [ $# -eq 0 ] || printf '  %s\n' "$@" >&2
    exit 1
}

# locked NAME COMMAND...: runs the command in one checkout at a time; the others wait, then find the work done.
locked() {
    local name=$1
    shift
    mkdir -p "$CACHE"
    (
        if command -v flock >/dev/null; then
            flock -n 9 || { say "waiting for another checkout to prepare $name"; flock 9; }
        fi
        "$@"
    ) 9>"$CACHE/.lock-$name"
}

# with_progress FOLDER COMMAND...: runs a command that fills FOLDER and reports the size every ten seconds. Shows the command's
# output only if it fails.
with_progress() {
    local folder=$1 log status=0 ticker
    shift
    log=$(mktemp)
    (
        while sleep 10 && kill -0 $$; do
            say "  ... $(du -sm "$folder" 2>/dev/null | cut -f1) MB so far"
        done
    ) 9>&- &
    ticker=$!
    "$@" >"$log" 2>&1 || status=$?
    kill "$ticker" 2>/dev/null || true
    wait "$ticker" 2>/dev/null || true
    [ $status -eq 0 ] || tail -n 15 "$log" >&2
    rm -f "$log"
    return $status
}
