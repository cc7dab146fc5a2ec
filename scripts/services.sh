#!/usr/bin/env bash
# Servers for tests and experiments: Apache Kafka (one node), Redis, PostgreSQL, Milvus Lite (one process) and an S3-compatible
# object store (moto, in memory), on free ports of 127.0.0.1, with all files in one folder.
#
#   scripts/services.sh up [DIR]                        starts them; prints DIR/env, which has their addresses
#   scripts/services.sh down [DIR]                      stops them and deletes DIR
#   scripts/services.sh stop|start|restart NAME [DIR]   kills a server as in a power cut (PostgreSQL gets an immediate
#                                                       shutdown); starts it with its data and port
#
# DIR defaults to SOUK_SERVICES, else souk-services-UID in the temporary folder. A server whose variable is set (KAFKA_BROKERS,
# REDIS_URL, DATABASE_URL, MILVUS_URL, S3_URL) is not started. The servers have no password: anyone with an account on this
# machine can use them while they run.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

declare -A VARIABLE=([kafka]=KAFKA_BROKERS [redis]=REDIS_URL [postgres]=DATABASE_URL [milvus]=MILVUS_URL
    [s3]=S3_URL)
SERVERS=(kafka redis postgres milvus s3)
# `down` deletes only folders with this file.
MARK=.souk-services
# Timeout in seconds for a server to start; long, because a machine that compiles on every core is slow.
PATIENCE=120

main() {
    local verb=${1:-} name=all
    [ $# -eq 0 ] || shift
    case $verb in
    up | down) ;;
    serve) name=$1 && shift ;;
    stop | start | restart)
        [[ " ${SERVERS[*]} " == *" ${1:-} "* ]] || fail "no server \`${1:-}\`" "Servers: ${SERVERS[*]}"
        name=$1 && shift
        ;;
    *) fail "unknown command \`$verb\`" "scripts/services.sh up|down [DIR]" \
        "scripts/services.sh stop|start|restart NAME [DIR]" ;;
    esac
    [ $# -le 1 ] || fail "too many arguments: $*"
    choose_folder "${1:-${SOUK_SERVICES:-${TMPDIR:-/tmp}/souk-services-$(id -u)}}"
    case $verb in
    up | down) "$verb" ;;
    serve) serve "$name" ;;
    *)
        [ -f "$dir/$name/port" ] || fail "no $name was started in $dir" "scripts/services.sh up $dir"
        [ "$verb" = start ] || [ "$name" != postgres ] || ask_postgres
        [ "$verb" = start ] || kill_group "$name"
        [ "$verb" = stop ] || { alive "$name" || launch "$name"; settle "$name"; }
        ;;
    esac
}

# Resolves links, because the path is compared with those in /proc.
choose_folder() {
    local parent
    parent=$(cd "$(dirname -- "$1")" && pwd -P) || fail "the parent folder of $1 does not exist"
    dir=${parent%/}/$(basename -- "$1")
}

up() {
    local name
    if [ -f "$dir/env" ] && all_alive; then
        say "already up"
    else
        [ ! -f "$dir/$MARK" ] || (down)
        lock_folder
        trap down EXIT
        trap 'exit 130' INT
        # One checkout at a time, so that nobody takes a port between our choice and the server's start.
        locked services start_all
        trap - EXIT
    fi
    cat "$dir/env"
    say "in another shell: . $dir/env"
    say "to stop them:     scripts/services.sh down $dir"
}

all_alive() {
    local port
    for port in "$dir"/*/port; do
        [ ! -f "$port" ] || alive "$(basename "${port%/port}")" || return 1
    done
}

lock_folder() {
    mkdir -p "$dir"
    if [ ! -O "$dir" ] || [ -n "$(ls -A "$dir")" ]; then
        fail "$dir belongs to another user or is not empty" "Give a new folder: scripts/services.sh up DIR"
    fi
    # PostgreSQL runs as another user if we are root.
    chmod 711 "$dir"
    touch "$dir/$MARK"
}

start_all() {
    local name wanted=() started=() ports begin=$SECONDS
    trap 'exit 130' INT
    for name in "${SERVERS[@]}"; do
        local variable=${VARIABLE[$name]}
        [ -n "${!variable:-}" ] || wanted+=("$name")
    done
    [ ${#wanted[@]} -eq 0 ] || scripts/setup.sh servers "${wanted[@]}" || true
    read -r -a ports < <(free_ports 6) && [ ${#ports[@]} -eq 6 ] || fail "found no free ports on 127.0.0.1"
    for name in ${wanted[@]+"${wanted[@]}"}; do
        if "has_$name"; then
            mkdir "$dir/$name"
            echo "${ports[${#started[@]}]}" >"$dir/$name/port"
            [ "$name" != kafka ] || configure_kafka "${ports[0]}" "${ports[5]}"
            launch "$name"
            started+=("$name")
        else
            echo "$name is not available on this machine; set ${VARIABLE[$name]} to use one that runs elsewhere" |
                tee -a "$dir/missing" >&2
        fi
    done
    for name in ${started[@]+"${started[@]}"}; do
        settle "$name"
    done
    say "started in $((SECONDS - begin)) s: ${started[*]:-nothing}"
    write_env
}

# Uses ports below the kernel's ephemeral range. Otherwise a client that keeps reconnecting to a stopped broker would sooner or later
# get the broker's own port as its source port.
free_ports() {
    python3 - "$1" <<'PYTHON'
import random, socket, sys

held = []
for port in random.sample(range(20000, 30000), 1000):
    if len(held) < int(sys.argv[1]):
        candidate = socket.socket()
        try:
            candidate.bind(("127.0.0.1", port))
        except OSError:
            continue
        held.append(candidate)
print(*(candidate.getsockname()[1] for candidate in held))
PYTHON
}

# Sets SOUK_SERVICES if tests can stop and start a server: one that was started from this folder.
write_env() {
    local name services=${SOUK_SERVICES:-}
    [ ! -f "$dir/kafka/port" ] && [ ! -f "$dir/milvus/port" ] || services=$dir
    {
        for name in "${SERVERS[@]}"; do
            local variable=${VARIABLE[$name]} value
            value=${!variable:-}
            [ ! -f "$dir/$name/port" ] || value=$(url "$name" "$(cat "$dir/$name/port")")
            [ -z "$value" ] || printf 'export %s=%q\n' "$variable" "$value"
        done
        [ -z "$services" ] || printf 'export SOUK_SERVICES=%q\n' "$services"
    } >"$dir/env.new"
    mv "$dir/env.new" "$dir/env"
}

# url NAME PORT
url() {
    case $1 in
    kafka) echo "127.0.0.1:$2" ;;
    redis) echo "redis://127.0.0.1:$2" ;;
    postgres) echo "postgres://souk@127.0.0.1:$2/souk" ;;
    milvus | s3) echo "http://127.0.0.1:$2" ;;
    esac
}

# launch NAME: starts the server in its own session, so that Ctrl-C in this terminal does not reach it.
launch() {
    rm -f "$dir/$1/pid"
    setsid scripts/services.sh serve "$1" "$dir" </dev/null >>"$dir/$1/log" 2>&1 9>&- &
    for _ in $(seq 500); do
        [ ! -s "$dir/$1/pid" ] || return 0
        sleep 0.02
    done
}

# serve NAME: replaces this process by the server. It writes its process id first and then checks for `stopping`; `down` creates
# `stopping` first and then looks for processes. So no process is missed.
serve() {
    cd "$dir/$1"
    echo $$ >pid
    [ ! -e "$dir/stopping" ] || exit 1
    "serve_$1" "$(cat port)"
}

serve_kafka() {
    local java=(java -Xmx768m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData "-Djava.io.tmpdir=$PWD"
        -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -Dorg.slf4j.simpleLogger.showDateTime=true
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS" -cp "$KAFKA/*")
    [ -f data/meta.properties ] ||
        "${java[@]}" kafka.tools.StorageTool format --cluster-id souk-souk-souk-souk-sg --config server.properties
    exec "${java[@]}" kafka.Kafka server.properties
}

# configure_kafka PORT CONTROLLER_PORT: one node, few threads, and no waiting for other members or brokers. The session timeout is
# short, because a killed broker can rejoin only after its session has expired.
configure_kafka() {
    cat >"$dir/kafka/server.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$2
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$1,CONTROLLER://127.0.0.1:$2
advertised.listeners=PLAINTEXT://127.0.0.1:$1
log.dirs=data
auto.create.topics.enable=false
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=250
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
num.network.threads=1
num.io.threads=2
background.threads=2
log.cleaner.dedupe.buffer.size=4194304
PROPERTIES
}

serve_redis() {
    exec redis-server --port "$1" --bind 127.0.0.1 --dir . --save '' --appendonly no --daemonize no
}

# PostgreSQL does not run as root.
serve_postgres() {
    local bin user=()
    bin=$(postgres_programs)
    # runs once the program in the foreground has ended
    trap 'exit 1' TERM
    if [ "$(id -u)" -eq 0 ]; then
        chown postgres .
        user=(setpriv --reuid=postgres --regid=postgres --init-groups --)
        "${user[@]}" test -x "$PWD" || fail "the user postgres cannot enter $PWD" "Give another folder: scripts/services.sh up DIR"
    fi
    if [ ! -f made ]; then
        "${user[@]}" "$bin/initdb" --pgdata=data --username=souk --auth=trust --encoding=UTF8 --locale=C --no-sync
        echo "create database souk" | "${user[@]}" "$bin/postgres" --single -F -D data postgres
        touch made
    fi
    exec "${user[@]}" "$bin/postgres" -D data -p "$1" -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
        -c fsync=off -c synchronous_commit=off -c full_page_writes=off -c shared_buffers=32MB
}

serve_milvus() {
    local folder
    folder=$(cd "$OLDPWD" && python_folder scripts/milvus.txt)
    exec "$folder/bin/milvus-lite" server --data-dir data --host 127.0.0.1 --port "$1"
}

serve_s3() {
    local folder
    folder=$(cd "$OLDPWD" && python_folder scripts/s3.txt)
    exec "$folder/bin/moto_server" -H 127.0.0.1 -p "$1"
}

# settle NAME: waits until the server answers; on timeout, prints the end of its log and fails.
settle() {
    local name=$1 begin=$SECONDS port
    port=$(cat "$dir/$name/port")
    until "answers_$name" "$port" 2>/dev/null && alive "$name"; do
        if ! alive "$name" || [ $((SECONDS - begin)) -ge $PATIENCE ]; then
            say "end of the log of $name:"
            tail -n 15 "$dir/$name/log" >&2
            fail "$name did not answer on 127.0.0.1:$port"
        fi
        sleep 0.1
    done
}

# Sends a metadata request (version 4) without topics; the broker is ready once the answer lists one broker.
answers_kafka() {
    python3 - "$1" <<'PYTHON'
import socket, struct, sys

request = struct.pack(">hhih4sib", 3, 4, 0, 4, b"souk", 0, 0)
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5) as connection:
    connection.sendall(struct.pack(">i", len(request)) + request)
    answer = connection.makefile("rb").read(16)
sys.exit(struct.unpack(">iiii", answer)[3] != 1)
PYTHON
}

answers_redis() {
    local reply
    (exec 3<>"/dev/tcp/127.0.0.1/$1" && printf 'PING\r\n' >&3 && read -r -t 5 reply <&3 && [[ $reply == +PONG* ]])
}

answers_postgres() {
    [ "$(PGCONNECT_TIMEOUT=5 "$(postgres_programs)/psql" -XAtq -h 127.0.0.1 -p "$1" -U souk -d souk -c 'select 1')" = 1 ]
}

# Milvus Lite listens only after it has loaded its data.
answers_milvus() {
    (exec 3<>"/dev/tcp/127.0.0.1/$1")
}

answers_s3() {
    (exec 3<>"/dev/tcp/127.0.0.1/$1")
}

down() {
    local name
    trap '' INT TERM HUP
    [ -e "$dir" ] || return 0
    [ -f "$dir/$MARK" ] || fail "$dir was not made by this script, so it is not deleted"
    touch "$dir/stopping"
    for name in "${SERVERS[@]}"; do
        [ "$name" != postgres ] || ask_postgres
        kill_group "$name"
    done
    # killed processes may need a moment to release their files
    rm -rf "$dir" || { sleep 1 && rm -rf "$dir"; }
}

# alive NAME: the process runs and is the one that was started here (the kernel reuses process ids).
alive() {
    local pid
    pid=$(cat "$dir/$1/pid" 2>/dev/null) && [[ $(readlink "/proc/$pid/cwd") == "$dir/$1"* ]]
}

# PostgreSQL must shut down itself to release its shared memory. SIGINT stops the server at once. During initdb SIGTERM is sent
# instead, which takes effect after initdb has ended, because an interrupted initdb leaves child processes behind.
ask_postgres() {
    local pid signal=TERM
    alive postgres || return 0
    pid=$(cat "$dir/postgres/pid")
    [ "$(head -n 1 "$dir/postgres/data/postmaster.pid" 2>/dev/null)" != "$pid" ] || signal=INT
    kill -$signal "$pid"
    gone postgres || true
}

kill_group() {
    if alive "$1"; then
        kill -KILL -- "-$(cat "$dir/$1/pid")"
        gone "$1" || fail "$1 cannot be killed"
    fi
}

gone() {
    for _ in $(seq 600); do
        alive "$1" || return 0
        sleep 0.05
    done
    return 1
}

main "$@"
