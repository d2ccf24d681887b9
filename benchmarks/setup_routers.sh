#!/usr/bin/env bash
# Installs the central routers that `python -m benchmarks.vs_router` compares with, each in an environment of its own.
# Usage: benchmarks/setup_routers.sh DIRECTORY
set -euo pipefail

directory=${1:?usage: benchmarks/setup_routers.sh DIRECTORY}
python=${PYTHON:-python3}

for package in sglang-router==0.3.2 smg==1.13.0; do
    venv="$directory/${package%%==*}"
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$package"
    echo "installed: $package in $venv" >&2
done
