#!/bin/sh
# Installs the peers of `make bench` from PyPI: Megatron-Energon by itself, because it pins what the others do not.
set -e
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
install() {
    test -x "$1/bin/python" || "$python" -m venv "$1"
    venv=$1
    shift
    # Of our constraints, only the CPU build of torch: the peers pin older versions of the rest.
    grep '^torch==' constraints.txt > "$venv/constraints.txt"
    "$venv/bin/python" -m pip install -q --disable-pip-version-check -c "$venv/constraints.txt" torch
    "$venv/bin/python" -m pip install -q --disable-pip-version-check -c "$venv/constraints.txt" "$@"
}
install .venv-energon 'megatron-energon[s3]==7.4.1'
install .venv-peers mosaicml-streaming==0.13.0 litdata==0.2.76 s3torchconnector==1.5.0
