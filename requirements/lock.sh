#!/bin/sh
# Pin every dependency with hashes, for every supported Python and platform; no index address is recorded.
set -eu
"$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: -r requirements/lock.txt
pin() {
    "$uv" pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" "$@"
}
uv=$1/bin/uv
pin layers/core/requirements.in -o layers/core/requirements.txt
# Both layers are laid over one folder, so where they bring the same package it is the same version.
pin layers/tasks/requirements.in -c layers/core/requirements.txt -o layers/tasks/requirements.txt
pin requirements/dev.in -o requirements/dev.txt
pin requirements/runtime.in -o requirements/runtime.txt
pin requirements/sam.in -o requirements/sam.txt
pin requirements/lock.in -o requirements/lock.txt
