#!/bin/sh
# What the gate does about deployments: `make deployed` where there is a Python 3.13, else it compares the stamp.
set -eu
cd "$(dirname "$0")/../.."
if sh requirements/python.sh 3.13 >/dev/null; then
    exec make deployed
fi
echo "so the stack is not deployed here; the stamp says whether it was, elsewhere"
exec "${VENV:-.venv}/bin/python" -m tools.deployed --check-stamp
