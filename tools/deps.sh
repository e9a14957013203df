#!/bin/sh
# tools/deps.sh [build|test|fuzz] - make sure that what a purpose needs is installed (test, unless told).
#
# Does nothing, quickly, when everything is there. Otherwise it says what is missing and installs it with apt-get
# (as root, or through sudo when that asks for no password); where it may not, it prints the command to run and
# fails. clang-format is wanted for one check only, so its absence is reported, not fatal.
set -eu
cd "$(dirname "$0")/.."

purpose=${1:-test}
case $purpose in
build | test | fuzz) ;;
*)
    echo "usage: tools/deps.sh [build|test|fuzz]" >&2
    exit 2
    ;;
esac

missing=
optional=
has() { command -v "$1" >/dev/null 2>&1; }
need() { missing="$missing $1"; }
# need_library MODULE PACKAGE: without pkg-config nobody can say, and asking for an installed package does no harm.
need_library() { has pkg-config && pkg-config --exists "$1" || need "$2"; }

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
if [ "$purpose" = test ]; then
    if ! has mpirun.openmpi && ! mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
        need openmpi-bin
        need libopenmpi-dev
    fi
    if ! has mpichversion; then
        need mpich
        need libmpich-dev
    fi
fi
if [ "$purpose" = fuzz ]; then
    has clang || need clang
fi
tried=build/.no-clang-format
if [ "$purpose" = test ]; then
    has python3 || need python3
    need_library cmocka libcmocka-dev
    # The code is laid out with version 14; a later one can at least be tried (tools/check-format).
    if ! has clang-format-14 && ! has clang-format && [ ! -e "$tried" ]; then optional=clang-format; fi
fi

[ -n "$missing$optional" ] || exit 0

as_root=
if [ "$(id -u)" -ne 0 ]; then as_root=sudo; fi
if ! has apt-get; then
    [ -n "$missing" ] || exit 0
    echo "tools/deps.sh: missing (Debian's names):$missing" >&2
    echo "tools/deps.sh: this system has no apt-get; install their equivalents with its own package manager" >&2
    exit 1
fi
if [ -n "$as_root" ] && ! { has sudo && sudo -n true 2>/dev/null; }; then
    [ -n "$missing" ] || exit 0
    echo "tools/deps.sh: missing packages. Run this, then try again:" >&2
    echo "    sudo apt-get update && sudo apt-get install -y$missing $optional" >&2
    exit 1
fi

export DEBIAN_FRONTEND=noninteractive
if [ -n "$as_root" ]; then as_root="sudo -n DEBIAN_FRONTEND=noninteractive"; fi
install() { $as_root apt-get install -y -qq "$@" >build/deps.log 2>&1; }
mkdir -p build
echo "tools/deps.sh: installing$missing${optional:+ $optional}"
if ! $as_root apt-get update -qq >build/deps.log 2>&1; then
    echo "tools/deps.sh: apt-get update failed; trying with the package lists as they are" >&2
fi
# shellcheck disable=SC2086
if [ -n "$missing" ] && ! install $missing; then
    cat build/deps.log >&2
    echo "tools/deps.sh: apt-get install failed (above); needed:$missing" >&2
    exit 1
fi
if [ -n "$optional" ] && ! install clang-format-14 && ! install clang-format; then
    echo "tools/deps.sh: NOTE: clang-format could not be installed; the format check will be skipped" >&2
    echo "tools/deps.sh: NOTE: remove $tried to try again" >&2
    touch "$tried"
fi
