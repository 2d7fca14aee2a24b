#!/bin/sh
# Installs the peers of `make bench` from PyPI: Megatron-Energon by itself, because it pins what the others do not.
set -e
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
install() {
    test -x "$1/bin/python" || "$python" -m venv "$1"
    venv=$1
    shift
    "$venv/bin/python" -m pip install -q --disable-pip-version-check -c constraints.txt torch
    "$venv/bin/python" -m pip install -q --disable-pip-version-check -c constraints.txt "$@"
}
install .venv-energon 'megatron-energon[s3]==7.4.1'
install .venv-peers mosaicml-streaming==0.13.0 litdata==0.2.76 s3torchconnector==1.5.0
