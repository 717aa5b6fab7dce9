#!/bin/sh
# Pin every dependency with hashes, for every supported Python and platform; no index address is recorded.
set -eu
"$1/bin/python" -m pip install --quiet uv==0.13.9
pin() {
    "$uv" pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" "$1" -o "$2"
}
uv=$1/bin/uv
pin layers/core/requirements.in layers/core/requirements.txt
pin layers/tasks/requirements.in layers/tasks/requirements.txt
pin requirements/dev.in requirements/dev.txt
