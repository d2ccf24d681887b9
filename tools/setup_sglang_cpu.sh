#!/usr/bin/env bash
# Installs SGLang for a machine without a GPU into an environment of its own, and makes the default model for it.
# Usage: tools/setup_sglang_cpu.sh VENV_DIR MODEL_DIR. It says each step; a second run finds all there and is done.
#
# SGLang runs on a CPU in plain torch, but its package asks for a CUDA machine. So its dependencies are listed
# here (sglang_cpu/), and three packages that it imports and does not use on this path get stand-ins.
set -euo pipefail

venv=${1:?usage: tools/setup_sglang_cpu.sh VENV_DIR MODEL_DIR}
model=${2:?usage: tools/setup_sglang_cpu.sh VENV_DIR MODEL_DIR}
recipe=$(cd "$(dirname "$0")/sglang_cpu" && pwd)

say() { printf 'sglang: %s\n' "$*" >&2; }
fail() { say "$*"; exit 2; }

# What the environment is made from; another recipe makes another one.
wanted=$(cat "$0" $(find "$recipe" -name '*.txt' -o -path '*/stand_ins/*.py' | LC_ALL=C sort) | cksum)

if [ "$(cat "$venv/.installed" 2>/dev/null)" != "$wanted" ]; then
    [ "$(uname -sm)" = "Linux x86_64" ] || [ "$(uname -sm)" = "Linux aarch64" ] ||
        fail "this recipe is for Linux; on other systems attach a server with --engine-url"
    if [ ! -x "$venv/bin/python" ]; then
        python=${PYTHON:-}
        for candidate in python3.11 python3.12 python3.13; do
            [ -n "$python" ] || { command -v "$candidate" >/dev/null && python=$candidate; }
        done
        [ -n "$python" ] || fail "Python 3.11 to 3.13 is needed: install it, or set PYTHON=/path/to/python"
        say "creating $venv with $("$python" --version)"
        "$python" -m venv "$venv" || fail "$python cannot make virtual environments: install its venv package"
    fi
    pip=("$venv/bin/python" -m pip install --quiet --quiet --disable-pip-version-check)
    say "installing SGLang for the CPU into $venv (1.7 GB, 2 to 4 minutes)"
    "${pip[@]}" --requirement "$recipe/requirements.txt"
    "${pip[@]}" --no-deps --requirement "$recipe/requirements-no-deps.txt"
    packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    for stand_in in "$recipe"/stand_ins/*/; do
        name=$(basename "$stand_in")
        if compgen -G "$packages/$name-*.dist-info" >/dev/null; then
            say "$name itself is installed, and stays"
        else
            rm -rf "${packages:?}/$name"
            cp -R "$stand_in" "$packages/$name"
        fi
    done
    printf '%s' "$wanted" >"$venv/.installed"
fi

if [ ! -d "$model" ]; then
    say "converting SmolLM2-135M-Instruct for it (half a minute)"
    mkdir -p "$(dirname "$model")"
    log=$(mktemp)
    if ! HF_HUB_OFFLINE=1 "$venv/bin/python" "$recipe/convert_model.py" "$model" >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        fail "the model could not be converted"
    fi
    rm -f "$log"
fi
say "ready: $venv/bin/python runs SGLang, and the model is in $model"
