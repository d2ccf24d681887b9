#!/usr/bin/env bash
# Makes the virtual environment that the Makefile's targets run in, and installs what is missing for it.
# Usage: tools/setup_venv.sh VENV_DIR. It says each step; set PYTHON to choose another interpreter.
set -euo pipefail

venv=${1:?usage: tools/setup_venv.sh VENV_DIR}
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 2; }

python=${PYTHON:-}
if [ -z "$python" ]; then
    for candidate in python3.11 python3.12 python3.13 python3; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            python=$candidate
            break
        fi
    done
fi
[ -n "$python" ] || fail "Python 3.11 or later is needed: install it, or set PYTHON=/path/to/python"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    fail "$python is not Python 3.11 or later"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

# fastecdsa, which libp2p uses, comes as source only: it is compiled against GMP and Python's headers.
packages=()
command -v cc >/dev/null || command -v gcc >/dev/null || packages+=(gcc libc6-dev)
compiler=$(command -v cc || command -v gcc || true)
if [ -z "$compiler" ] || ! printf '#include <gmp.h>\n' | "$compiler" -E -x c - >/dev/null 2>&1; then
    packages+=(libgmp-dev)
fi
"$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
    packages+=("python$version-dev")
"$python" -c 'import ensurepip, venv' 2>/dev/null || packages+=("python$version-venv")

if [ "${#packages[@]}" -gt 0 ]; then
    command -v apt-get >/dev/null ||
        fail "these are missing, and there is no apt-get to install them: ${packages[*]}"
    as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || fail "run this as root first: apt-get install ${packages[*]}"
        as_root=(sudo)
    fi
    say "installing with apt-get: ${packages[*]}"
    log=$(mktemp)
    apt_get=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get)
    if ! { "${apt_get[@]}" update && "${apt_get[@]}" install -y "${packages[@]}"; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        fail "apt-get could not install ${packages[*]}"
    fi
    rm -f "$log"
fi

if [ ! -x "$venv/bin/python" ]; then
    say "creating $venv with $("$python" --version)"
    "$python" -m venv "$venv"
fi

say "installing peerinfer and what it needs into $venv (about a minute the first time)"
"$venv/bin/python" -m pip install --quiet --quiet --disable-pip-version-check --editable '.[dev]'

# libp2p pulls trio-typing, whose stale stubs shadow trio's own types and break mypy --strict.
"$venv/bin/python" -c 'import pathlib, shutil, sysconfig
shutil.rmtree(pathlib.Path(sysconfig.get_path("purelib"), "trio-stubs"), ignore_errors=True)'

touch "$venv/.installed"
say "done"
