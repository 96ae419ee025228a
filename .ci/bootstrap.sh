#!/bin/sh
# Sees to what pip cannot install, and makes the virtual environment.
#
# Usage: PYTHON=python3 .ci/bootstrap.sh FOLDER
#
# Looked for each time, and installed with the system's package manager where missing:
#   venv         to make FOLDER (Debian keeps it in a package of its own)
#   Python.h     Inductor's C++ code includes it
#   g++          Inductor compiles with it
#   dot          Graphviz; drawings, and the tests of drawings, need it
#   chromium     and its driver; the tests of the report in a browser need them
# Without venv nothing works, so that is an error. The rest is a warning: people without root can still install.
set -eu

venv=${1:?usage: .ci/bootstrap.sh FOLDER}
PYTHON=${PYTHON:-python3}
apt_updated=no

say() { printf 'setup: %s\n' "$*" >&2; }

die() {
    say "$@"
    exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# install_package APT DNF BREW: one package by its name with each manager; "-" where that manager has none.
install_package() {
    if has apt-get; then
        manager=apt-get package=$1
    elif has dnf; then
        manager=dnf package=$2
    elif has brew; then
        manager=brew package=$3
    else
        say "cannot install anything: none of apt-get, dnf and brew is here"
        return 1
    fi
    [ "$package" != - ] || return 1
    if [ "$manager" != brew ] && [ "$(id -u)" -ne 0 ] && ! has sudo; then
        say "cannot install $package: not root, and no sudo here"
        return 1
    fi
    say "installing $package with $manager"
    case $manager in
    apt-get)
        if [ "$apt_updated" = no ]; then
            as_root apt-get update -q >&2 || say "apt-get update failed; trying with the lists that are here"
            apt_updated=yes
        fi
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$package" >&2
        ;;
    dnf) as_root dnf install -y -q "$package" >&2 ;;
    brew) brew install "$package" >&2 ;;
    esac
}

has "$PYTHON" || die "no $PYTHON here: install Python 3.11 or newer, or name one: make setup PYTHON=python3.12"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "$PYTHON is $("$PYTHON" -V 2>&1), and fxbucket needs 3.11 or newer: make setup PYTHON=python3.12"
version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

if ! "$venv/bin/python" -c 'import pip' >/dev/null 2>&1; then
    if ! "$PYTHON" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        install_package "python$version-venv" python3 - ||
            die "$PYTHON cannot make virtual environments and venv could not be installed:" \
                "install python$version-venv (Debian, Ubuntu), or a Python that has ensurepip"
    fi
    say "making $venv with $("$PYTHON" -V)"
    "$PYTHON" -m venv --clear "$venv" || die "$PYTHON -m venv $venv failed; see above"
fi

has_headers() {
    "$venv/bin/python" -c 'if True:
        import os, sys, sysconfig
        sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include", scheme="posix_prefix"), "Python.h")))'
}

if ! has_headers; then
    install_package "python$version-dev" python3-devel - && has_headers ||
        say "WARNING: Python.h is missing and could not be installed. Inductor needs it, so compiling for CPU will fail:" \
            "install python$version-dev (Debian, Ubuntu) or python3-devel (Fedora)"
fi

if [ "$(uname -s)" = Darwin ]; then compiler=clang++; else compiler=g++; fi
compiler=${CXX:-$compiler}
if ! has "$compiler"; then
    install_package build-essential gcc-c++ - && has "$compiler" ||
        say "WARNING: the C++ compiler $compiler is missing and could not be installed." \
            "Inductor needs it, so compiling for CPU will fail: install g++ (on macOS: xcode-select --install)"
fi

if ! has dot; then
    install_package graphviz graphviz graphviz && has dot ||
        say "WARNING: Graphviz's dot is missing and could not be installed. Drawings, and the tests of drawings, need it:" \
            "install the package graphviz"
fi

has_chromium() { has chromium || has chromium-browser || has google-chrome; }

if ! has_chromium || ! has chromedriver; then
    install_package chromium chromium - && install_package chromium-driver chromedriver - && has_chromium && has chromedriver ||
        say "WARNING: Chromium and its driver are missing and could not be installed. The tests of the report in a browser" \
            "are skipped: install the packages chromium and chromium-driver"
fi
