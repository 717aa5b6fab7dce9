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
pin requirements/demo.in -c requirements/dev.txt -o requirements/demo.txt
pin requirements/runtime.in -o requirements/runtime.txt
pin requirements/sam.in -o requirements/sam.txt
pin requirements/release.in -o requirements/release.txt
pin requirements/lock.in -o requirements/lock.txt
# The emulator: one Python, one platform, wheels only, but for what is published as source.
pin_emulator() {
    "$uv" pip compile --quiet --no-config --python-version 3.13 --python-platform x86_64-manylinux_2_28 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --only-binary :all: \
        --no-binary airspeed-ext --no-binary crontab --no-binary jsonpath-rw "$@"
}
pin_emulator requirements/deployed.in -o requirements/deployed.txt \
    --no-emit-package airspeed-ext --no-emit-package crontab --no-emit-package jsonpath-rw
pin_emulator --no-deps requirements/deployed-source.in -c requirements/deployed.txt -o requirements/deployed-source.txt
