#!/usr/bin/env bash
# Builds the image of docker/Dockerfile's target `cpu` without a registry of images, runs it, and starts compose's small profile
# from it with podman. Needs root, and 4 GB in the temporary folder. Everything runs in namespaces of its own: ports do not
# collide, and nothing remains when the script ends or is interrupted.
#
#   scripts/image.sh [FOLDER]   FOLDER is the result of `scripts/dist.sh folder`; the default is to make it, which compiles
#
# The base `debian:bookworm-slim` is made with debootstrap and kept as a tarball in the cache folder. If podman cannot start
# containers, the image is run in a chroot, and compose is skipped.
#
#   SOUK_IMAGE=chroot   runs the image in a chroot even if podman can start containers
#   DEBIAN_MIRROR=URL   instead of http://deb.debian.org/debian
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

BASE=$CACHE/tools/debian-bookworm.tar.gz
# Debian package of each program that is needed
declare -A PACKAGE=([debootstrap]=debootstrap [podman]=podman [crun]=crun [netavark]=netavark [aardvark-dns]=aardvark-dns
    [iptables]=iptables [ip]=iproute2 [curl]=curl)
# Timeout in seconds for a service to be ready
PATIENCE=120
IMAGE=souk:cpu
child=

main() {
    install_programs
    work=$(mktemp -d "${TMPDIR:-/tmp}/souk-image-XXXXXX")
    trap clean_up EXIT
    trap 'exit 130' INT TERM
    # podman and others put large files there
    export TMPDIR=$work WORK=$work
    [ "$(df -k --output=avail "$work" | tail -n 1)" -gt 4000000 ] ||
        fail "$work has less than 4 GB of free space" "Set TMPDIR to a folder on a larger disk."
    mkdir -p "$work/context/opt"
    take_folder "$@"
    [ -f "$BASE" ] || make_base
    configure_podman
    say "building the image"
    private build_image || fail "the image could not be built" "podman's messages are above."
    say "built in $SECONDS s"
    COMPOSE=$(scripts/python.sh scripts/image.txt) && COMPOSE=${COMPOSE%/*}/podman-compose || COMPOSE=
    export COMPOSE
    private --net check_image
    echo "image: tested in $SECONDS s"
}

install_programs() {
    local program missing=() PATH=$PATH:/usr/lib/podman:/usr/libexec/podman
    [ "$(id -u)" -eq 0 ] || fail "building and running an image needs root" "Run: sudo scripts/image.sh"
    for program in "${!PACKAGE[@]}"; do
        command -v "$program" >/dev/null || missing+=("${PACKAGE[$program]}")
    done
    # debootstrap checks Debian's signatures with it
    [ -f /usr/share/keyrings/debian-archive-keyring.gpg ] || missing+=(debian-archive-keyring)
    [ ${#missing[@]} -eq 0 ] || scripts/setup.sh packages "${missing[@]}"
    [ -f "$MINILM/model.safetensors" ] || scripts/setup.sh
    unshare --mount --pid --net --fork true || fail "this machine refuses new namespaces (the message is above)" \
        "In a container, it must be privileged."
}

clean_up() {
    # ends all processes in its namespaces
    [ -z "$child" ] || { kill -KILL "$child" && wait "$child"; } 2>/dev/null || true
    rm -rf "$work" 2>/dev/null || { sleep 2 && rm -rf "$work"; }
}

# private [--net] FUNCTION: runs a function of this script in new namespaces. Runs it in the background, because bash handles a
# signal only after a command in the foreground has ended.
private() {
    unshare --mount --pid --mount-proc --fork --kill-child "${@:1:$#-1}" scripts/image.sh inside "${!#}" &
    child=$!
    local status=0
    wait "$child" || status=$?
    child=
    return $status
}

# take_folder [FOLDER]
take_folder() {
    local folder=${1:-}
    if [ -z "$folder" ]; then
        DIST=$work/dist scripts/dist.sh folder >/dev/null
        mv "$work"/dist/souk-* "$work/context/opt/souk"
        return
    fi
    [ -x "$folder/bin/souk-engine" ] && [ -d "$folder/libtorch" ] ||
        fail "$folder has no bin/souk-engine or no libtorch" "Give a folder that \`scripts/dist.sh folder\` made."
    # hard links, if it is on the same disk
    cp -al "$folder" "$work/context/opt/souk" 2>/dev/null || cp -a "$folder/." "$work/context/opt/souk"
}

make_base() {
    say "making a base of Debian bookworm with debootstrap: 60 MB downloaded, once"
    mkdir "$work/base"
    with_progress "$work/base" private run_debootstrap ||
        fail "debootstrap failed (see above)" "Check the network, or set DEBIAN_MIRROR to a mirror that this machine reaches."
    mkdir -p "${BASE%/*}"
    mv "$work/base.tar.gz" "$BASE"
}

# `minbase` has the same packages as debian:bookworm-slim.
run_debootstrap() {
    debootstrap --variant=minbase --keyring=/usr/share/keyrings/debian-archive-keyring.gpg bookworm "$WORK/base" \
        "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
    tar -C "$WORK/base" --exclude='./var/cache/apt/archives/*.deb' --exclude='./var/lib/apt/lists/*' --exclude='./proc/*' \
        --exclude='./sys/*' -cf - . | gzip -1 >"$WORK/base.tar.gz"
    rm -rf --one-file-system "$WORK/base"
}

# Puts all of podman's files into the temporary folder. Limits are those of this process, because a sandbox may forbid higher
# ones. Containers get no cgroups, because a sandbox may have none to write to.
configure_podman() {
    local driver=overlay
    mkdir -p "$work/lower" "$work/upper" "$work/inner" "$work/merged"
    private try_overlay 2>/dev/null || driver=vfs
    cat >"$work/storage.conf" <<CONF
[storage]
driver = "$driver"
graphroot = "$work/store"
runroot = "$work/run"
CONF
    cat >"$work/containers.conf" <<CONF
[containers]
cgroups = "disabled"
default_ulimits = ["nofile=$(limit -n 1048576)", "nproc=$(limit -u 32768)"]
[engine]
runtime = "crun"
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
tmp_dir = "$work/libpod"
[network]
network_backend = "netavark"
network_config_dir = "$work/networks"
CONF
    export CONTAINERS_STORAGE_CONF=$work/storage.conf CONTAINERS_CONF=$work/containers.conf
}

try_overlay() {
    mount -t overlay overlay -o "lowerdir=$WORK/lower,upperdir=$WORK/upper,workdir=$WORK/inner" "$WORK/merged"
}

# limit FLAG MOST: the hard limit of this process, at most MOST, in podman's format
limit() {
    local hard
    hard=$(ulimit -H "$1")
    [ "$hard" != unlimited ] && [ "$hard" -lt "$2" ] || hard=$2
    echo "$hard:$hard"
}

# Replaces the stage `build`, which compiles, by the folder. `--pull=never` keeps podman from asking a registry.
build_image() {
    hide_state
    gunzip -c "$BASE" | podman import --quiet --change 'CMD ["bash"]' - docker.io/library/debian:bookworm-slim >/dev/null
    mkdir "$WORK/empty"
    podman build --pull=never --isolation chroot --layers=false --file docker/Dockerfile --target cpu \
        --build-context "build=$WORK/context" --tag $IMAGE "$WORK/empty" >"$WORK/build.log" 2>&1 || {
        tail -n 30 "$WORK/build.log" >&2
        return 1
    }
    rm -rf "$WORK/context"
}

# Hides the folder that podman writes to whatever its settings are. crun refuses to start if both versions of cgroups are mounted.
hide_state() {
    mkdir -p /var/lib/containers "$WORK/containers"
    mount --bind "$WORK/containers" /var/lib/containers
    ! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified
}

check_image() {
    hide_state
    mount -t tmpfs tmpfs /run
    ip link set lo up
    write_shop
    local way=podman refused
    [ "${SOUK_IMAGE:-}" != chroot ] || way=chroot
    if [ $way = podman ] && ! refused=$(podman run --rm --network none $IMAGE --version 2>&1); then
        say "podman starts no containers here: $refused"
        way=chroot
    fi
    echo "image: $(podman image inspect --format '{{.Size}}' $IMAGE | awk '{ printf "%.0f MB", $1 / 1e6 }'), run by $way"
    if [ $way = podman ]; then enter_container; else enter_chroot; fi
    check_commands
    check_service
    if [ $way = podman ]; then check_compose; else echo "skipped: compose: the image runs in a chroot"; fi
}

# Three items, a query with its judgement, and an empty folder for the service's state, all of the image's user.
write_shop() {
    mkdir -p "$WORK/shop/qrels" "$WORK/state"
    cat >"$WORK/shop/corpus.jsonl" <<'ITEMS'
{"_id": "1", "title": "cordless drill 18V", "text": "two speeds"}
{"_id": "2", "title": "garden hose 20 m", "text": "with a spray gun"}
{"_id": "3", "title": "red running shoes", "text": "for women"}
ITEMS
    echo '{"_id": "q", "text": "drill"}' >"$WORK/shop/queries.jsonl"
    printf 'query-id\tcorpus-id\tscore\nq\t1\t1\n' >"$WORK/shop/qrels/test.tsv"
    chown -R 10001:10001 "$WORK/shop" "$WORK/state"
    export SHOP=$WORK/shop MODEL SOUK_SEARCH_KEYS=reader,admin:boss
    MODEL=$(realpath "$MINILM")
}

# Sets `souk` to the command that runs the image's entry point, with the limits of docker/kubernetes/search.yaml.
enter_container() {
    souk=(podman run --rm --interactive --read-only --read-only-tmpfs=false --tmpfs /tmp --cap-drop all
        --security-opt no-new-privileges --env SOUK_SEARCH_KEYS --publish 127.0.0.1:8080:8080
        --volume "$WORK/state:/var/lib/souk" --volume "$SHOP:/shop:ro" --volume "$MODEL:/model:ro" "$IMAGE")
}

# The same in a chroot of the image's files, which cannot be written to.
enter_chroot() {
    local root path settings
    root=$(podman mount "$(podman create $IMAGE)")
    mkdir "$root/shop" "$root/model"
    mount --bind "$root" "$root"
    mount -o remount,bind,ro "$root"
    mount --rbind /proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/tmp"
    for path in "$WORK/state:/var/lib/souk" "$SHOP:/shop" "$MODEL:/model"; do
        mount --bind "${path%:*}" "$root${path#*:}"
    done
    # user, folder, variables, program
    settings='{{.Config.User}} --chdir={{.Config.WorkingDir}} {{range .Config.Env}}{{.}} {{end}}'
    settings+='{{range .Config.Entrypoint}}{{.}} {{end}}'
    read -r -a settings < <(podman image inspect --format "$settings" $IMAGE)
    souk=(chroot "--userspec=${settings[0]}:${settings[0]}" "$root" /usr/bin/env --ignore-environment
        "SOUK_SEARCH_KEYS=$SOUK_SEARCH_KEYS" "${settings[@]:1}")
}

check_commands() {
    local version numbers
    version=$("${souk[@]}" --version)
    [[ $version == "souk "* ]] || fail "\`souk --version\` printed: $version"
    echo "souk --version: $version"
    numbers=$(echo "cordless drill" | "${souk[@]}" embed --model /model |
        python3 -c 'import json; print(len(json.loads(input())))')
    [ "$numbers" = 384 ] || fail "\`souk embed\` printed a vector of $numbers numbers, and not of 384"
    echo "souk embed: a vector of $numbers numbers"
}

check_service() {
    local server status=0 begin=$SECONDS
    "${souk[@]}" serve --config=/opt/souk/configs/search-embedded.toml --model=/model --data=/shop --state=/var/lib/souk/search \
        --set=store.database=sqlite:/var/lib/souk/souk.db --listen=0.0.0.0:8080 >"$WORK/serve.log" 2>&1 &
    server=$!
    until curl -sf --max-time 5 localhost:8080/readyz >/dev/null; do
        kill -0 $server 2>/dev/null && [ $((SECONDS - begin)) -lt $PATIENCE ] || {
            tail -n 20 "$WORK/serve.log" >&2
            fail "\`souk serve\` is not ready after $((SECONDS - begin)) s; its messages are above"
        }
        sleep 0.2
    done
    check_search
    [ "$(stat -c %u "$WORK/state/souk.db")" = 10001 ] || fail "\`souk serve\` does not run as user 10001"
    kill -TERM $server
    wait $server || status=$?
    [ $status -eq 0 ] || fail "\`souk serve\` ended with exit code $status after SIGTERM"
    echo "souk serve: ready, finds the item as user 10001, cannot write to the image, ends with exit code 0"
}

check_search() {
    local answer
    answer=$(curl -sf --max-time 10 -H 'Authorization: Bearer reader' -H 'Content-Type: application/json' \
        localhost:8080/search -d '{"query": "cordless drill", "k": 1}') || fail "/search does not answer"
    [[ $answer == *'"id":"1"'* ]] || fail "/search does not find the item: $answer"
}

# Starts the services of the small profile, and waits until each passes the health check of compose.yaml.
check_compose() {
    if [ -z "$COMPOSE" ]; then
        echo "skipped: compose: podman-compose could not be installed"
        return
    fi
    local service status up begin
    # In the background: newer versions of podman wait until search-small is healthy, and only `healthy` runs its check, because
    # podman needs systemd to run it regularly.
    compose up --detach >/dev/null &
    up=$!
    for service in search-small trainer-small; do
        healthy "souk_${service}_1" || fail_compose "$service is not healthy after $PATIENCE s"
    done
    wait $up || fail_compose "does not start"
    check_search
    begin=$SECONDS
    status=
    until [[ $status == *'"queries":1,'* ]]; do
        [ $((SECONDS - begin)) -lt $PATIENCE ] || fail_compose "the trainer does not read the log: $status"
        status=$(compose exec -T trainer-small curl -sf localhost:8070/status || true)
        sleep 0.2
    done
    compose exec -T search-small souk backup --keep 7 --state /var/lib/souk/search --to /backups \
        --set store.database=sqlite:/var/lib/souk/souk.db || fail_compose "a backup fails"
    compose stop >/dev/null || fail_compose "does not stop"
    for service in search-small trainer-small; do
        status=$(podman inspect --format '{{.State.ExitCode}}' "souk_${service}_1")
        [ "$status" = 0 ] || fail_compose "$service ended with exit code $status"
    done
    echo "compose, profile small: both services are healthy and end with exit code 0; the trainer reads the log; a backup is made"
}

compose() {
    "$COMPOSE" --project-name souk --file docker/compose.yaml --profile small "$@" 2>>"$WORK/compose.log"
}

# healthy CONTAINER
healthy() {
    local begin=$SECONDS
    until podman healthcheck run "$1" >/dev/null 2>&1; do
        [ $((SECONDS - begin)) -lt $PATIENCE ] || return 1
        sleep 0.5
    done
}

fail_compose() {
    tail -n 30 "$WORK/compose.log" >&2
    podman logs souk_search-small_1 2>&1 | tail -n 10 >&2
    podman logs souk_trainer-small_1 2>&1 | tail -n 10 >&2
    fail "compose: $1; messages are above"
}

if [ "${1:-}" = inside ]; then "$2"; else main "$@"; fi
