#!/bin/sh
# Print a Python of version $1 (3.13) that runs: from the PATH, else from pyenv. Without one, say so in a sentence.
set -eu
version=$1

is_usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' "$version" 2>/dev/null
}

# A shim of pyenv is on the PATH, too, for versions that are not chosen: it does not run.
for candidate in "$(command -v "python$version" || true)" "${PYENV_ROOT:-${HOME:-}/.pyenv}/versions/$version".*/bin/python; do
    if [ -x "$candidate" ] && is_usable "$candidate"; then
        echo "$candidate"
        exit 0
    fi
done
echo "tidemill: Python $version is needed, with its venv module: install it so that python$version is on the PATH, or run pyenv install $version" >&2
exit 1
