#!/bin/sh
# tools/deps.sh [build|test|live|fuzz] - make sure that what a purpose needs is installed (test, unless told).
#
# Does nothing, quickly, when everything is there. Otherwise it says what is missing and installs it with apt-get
# (as root, or through sudo when that asks for no password); where it may not, it prints the command to run and
# fails. Some things serve one test each: clang-format, a C++ compiler, Chromium, and the Python packages of clients, which go into a
# virtual environment (build/venv-test; build/venv-live for PyTorch and its relatives), and XLA's CPU plug-in (build/pjrt). Without them nothing fails
# here: a note is printed, and the test skips itself and is counted as skipped.
set -eu
cd "$(dirname "$0")/.."

LIGHT="openai prometheus_client tensorboard pyyaml check-jsonschema"
HEAVY="torch transformers safetensors sentence-transformers gguf peft"

purpose=${1:-test}
case $purpose in
build | test | live | fuzz) ;;
*)
    echo "usage: tools/deps.sh [build|test|live|fuzz]" >&2
    exit 2
    ;;
esac

missing=
optional=
has() { command -v "$1" >/dev/null 2>&1; }
need() { missing="$missing $1"; }
# need_library MODULE PACKAGE: without pkg-config nobody can say, and asking for an installed package does no harm.
need_library() { has pkg-config && pkg-config --exists "$1" || need "$2"; }
# want PACKAGE: one that can be done without, unless an earlier try failed.
want() { [ -e "build/.no-$1" ] || optional="$optional $1"; }
note() { echo "tools/deps.sh: NOTE: $*" >&2; }

has cmake || need cmake
has ninja || need ninja-build
has pkg-config || need pkg-config
if ! has "${CC:-gcc}" || ! printf '#include <stdio.h>\n' | "${CC:-gcc}" -E - >/dev/null 2>&1; then
    need gcc
    need libc6-dev
fi
need_library yaml-0.1 libyaml-dev
need_library zlib zlib1g-dev
need_library libzstd libzstd-dev
need_library libmicrohttpd libmicrohttpd-dev
need_library libcurl libcurl4-openssl-dev
need_library liburing liburing-dev
if [ "$purpose" = fuzz ]; then
    has clang || need clang
fi
if [ "$purpose" = test ] || [ "$purpose" = live ]; then
    if ! has mpirun.openmpi && ! mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
        need openmpi-bin
        need libopenmpi-dev
    fi
    if ! has mpichversion; then
        need mpich
        need libmpich-dev
    fi
    has python3 || need python3
    need_library cmocka libcmocka-dev
    # The code is laid out with version 14; a later one can at least be tried (tools/check-format).
    has clang-format-14 || has clang-format || want clang-format
    has "${CXX:-g++}" || has clang++ || want g++
    python3 -c 'import ensurepip' 2>/dev/null || want python3-venv
    [ -n "${CHROMIUM:-}" ] || has chromium || has chromium-browser || has google-chrome || has chrome || want chromium
fi

as_root=
if [ "$(id -u)" -ne 0 ]; then as_root="sudo -n DEBIAN_FRONTEND=noninteractive"; fi
export DEBIAN_FRONTEND=noninteractive
install() { $as_root apt-get install -y -qq "$@" >build/deps.log 2>&1; }

# Says whether packages can be installed; ends the script where one that is needed cannot be.
may_install() {
    if ! has apt-get; then
        [ -n "$missing" ] || return 1
        echo "tools/deps.sh: missing (Debian's names):$missing" >&2
        echo "tools/deps.sh: this system has no apt-get; install their equivalents with its own package manager" >&2
        exit 1
    fi
    if [ -n "$as_root" ] && ! { has sudo && sudo -n true 2>/dev/null; }; then
        [ -n "$missing" ] || return 1
        echo "tools/deps.sh: missing packages. Run this, then try again:" >&2
        echo "    sudo apt-get update && sudo apt-get install -y$missing$optional" >&2
        exit 1
    fi
}

install_optional() {
    case $1 in
    clang-format) install clang-format-14 || install clang-format ;;
    *) install --no-install-recommends "$1" ;;
    esac
}

install_packages() {
    echo "tools/deps.sh: installing$missing$optional"
    if ! $as_root apt-get update -qq >build/deps.log 2>&1; then
        echo "tools/deps.sh: apt-get update failed; trying with the package lists as they are" >&2
    fi
    # shellcheck disable=SC2086
    if [ -n "$missing" ] && ! install $missing; then
        cat build/deps.log >&2
        echo "tools/deps.sh: apt-get install failed (above); needed:$missing" >&2
        exit 1
    fi
    for package in $optional; do
        install_optional "$package" && continue
        note "$package could not be installed; what needs it will be skipped"
        note "remove build/.no-$package to try again"
        touch "build/.no-$package"
    done
}

# pip FOLDER ARGUMENT...: wheels only, so that nothing is compiled, and a registry that does not answer costs seconds.
pip() {
    python=$1/bin/python log=$1.log
    shift
    "$python" -m pip --disable-pip-version-check install --no-compile --only-binary :all: --retries 1 --timeout 15 "$@" >>"$log" 2>&1
}

# PyTorch's own index has wheels without CUDA; those on PyPI, the second choice, bring gigabytes of it.
install_wheels() {
    case $* in *torch*) pip "$1" --index-url https://download.pytorch.org/whl/cpu torch || true ;; esac
    pip "$@"
}

# make_venv FOLDER PACKAGE...: it is whole when the file `packages` in it names them.
make_venv() {
    [ "$(cat "$1/packages" 2>/dev/null)" != "$*" ] || return 0
    [ ! -e "$1.failed" ] || return 0
    echo "tools/deps.sh: installing Python packages ($*)"
    rm -rf "$1"
    if python3 -m venv "$1" >"$1.log" 2>&1 && install_wheels "$@"; then
        echo "$*" >"$1/packages"
        return 0
    fi
    note "Python packages could not be installed ($1.log); tests that need them will be skipped"
    note "remove $1.failed to try again"
    rm -rf "$1"
    touch "$1.failed"
}

# fetch_plugin: XLA's CPU plug-in, 50 to 64 MB, into build/pjrt. Only the tests of PJRT devices need it.
fetch_plugin() {
    [ ! -e build/pjrt/xla_cpu_pjrt.so ] && [ ! -e build/pjrt.failed ] || return 0
    echo "tools/deps.sh: fetching the PJRT plug-in xla-cpu-pjrt"
    rm -rf build/pjrt.part
    mkdir -p build/pjrt
    if build/venv-test/bin/python -m pip --disable-pip-version-check download --no-deps --only-binary :all: --retries 1 --timeout 15 \
        -d build/pjrt.part xla-cpu-pjrt >build/pjrt.log 2>&1 &&
        (cd build/pjrt.part && python3 -m zipfile -e ./*.whl .) >>build/pjrt.log 2>&1 &&
        mv build/pjrt.part/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so build/pjrt/; then
        rm -rf build/pjrt.part
        return 0
    fi
    note "xla-cpu-pjrt could not be fetched (build/pjrt.log); tests that need it will be skipped"
    note "remove build/pjrt.failed to try again"
    rm -rf build/pjrt.part
    touch build/pjrt.failed
}

mkdir -p build
if [ -n "$missing$optional" ] && may_install; then install_packages; fi
if [ "$purpose" = test ]; then
    # shellcheck disable=SC2086
    make_venv build/venv-test $LIGHT
    fetch_plugin
fi
if [ "$purpose" = live ]; then
    rm -f build/venv-live.failed
    # shellcheck disable=SC2086
    make_venv build/venv-live $HEAVY
fi
