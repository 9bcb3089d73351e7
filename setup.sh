#!/usr/bin/env bash
# Makes .venv/ in this checkout with everything that `make demo` and `make test` need; does nothing when it is current.
# Needs Python 3.11+ and, for the host target, a C++ compiler. PYTHON=... chooses the interpreter of a new .venv.
set -euo pipefail
cd "$(dirname "$0")"

stamp=.venv/.cudal1-setup
state=$(cat pyproject.toml setup.sh constraints/*.txt | sha256sum | cut -d' ' -f1)
if [ -x .venv/bin/python ] && [ "$(cat "$stamp" 2>/dev/null || true)" = "$state" ]; then
    exit 0
fi

say() { printf 'setup: %s\n' "$*" >&2; }

make_venv() {
    local python
    for python in ${PYTHON:-} python3 python3.12 python3.11 python3.13; do
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
        rm -rf .venv
        # a torch that is there already is taken as it is, gigabytes of it are not fetched twice
        local site=""
        "$python" -c 'import torch; t = torch.__version__.split("."); assert (int(t[0]), int(t[1])) >= (2, 11)' \
            2>/dev/null && site="--system-site-packages"
        if "$python" -m venv $site .venv && .venv/bin/python -m pip --version >/dev/null 2>&1; then
            say "$("$python" --version) in .venv${site:+, with the torch that is installed}"
            return
        fi
        say "$python cannot make a virtual environment with pip, trying the next one"
    done
    rm -rf .venv
    say "no Python 3.11 or later that can make a virtual environment was found; install one, or name it: PYTHON=... make setup"
    exit 1
}

has_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }

install_torch() {
    .venv/bin/python -c 'import torch' 2>/dev/null && return
    if has_gpu; then
        pip_install -c constraints/cuda.txt torch
        return
    fi
    local version
    version=$(sed -n 's/^torch==//p' constraints/cpu.txt)
    # a CPU build from the indexes that this machine's pip knows, then from PyTorch's own; CUDA's gigabytes last
    pip_install "torch==$version+cpu" 2>/dev/null && return
    say "no CPU build of torch $version is offered here, asking download.pytorch.org"
    pip_install --extra-index-url https://download.pytorch.org/whl/cpu "torch==$version+cpu" && return
    say "no CPU build of torch $version can be had, taking the default build"
    pip_install "torch==$version"
}

pip_install() { .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"; }

[ -x .venv/bin/python ] || make_venv
install_torch
# whatever torch is there stays: the other packages must not bring a second one
constraints=constraints/cpu.txt
has_gpu && constraints=constraints/cuda.txt
{
    grep -v '^torch' "$constraints"
    # as pip names it: torch.__version__ of PyPI's build ends in +cu130, its metadata's version does not
    .venv/bin/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))'
} > .venv/constraints.txt
pip_install -c .venv/constraints.txt -e '.[dev]'
command -v "${CXX:-g++}" >/dev/null || say "no C++ compiler (${CXX:-g++}): the host target and its tests need one"
printf '%s' "$state" > "$stamp"
say "done"
