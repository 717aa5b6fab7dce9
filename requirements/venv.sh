#!/bin/sh
# Make the virtual environment $1 from the pinned requirements $2, or say in one sentence what is missing.
# Optional: $3, the version of Python to take and no other; $4, pinned requirements that are built from source.
set -eu
venv=$1
requirements=$2
version=${3:-}
sources=${4:-}

fail() {
    echo "tidemill: $1" >&2
    exit 1
}

is_new_enough() {
    command -v "$1" >/dev/null 2>&1 && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

has_version() {
    [ -z "$version" ] || "$1" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' "$version"
}

python=
if [ -n "$version" ]; then
    TIDEMILL_PYTHON=$(sh "$(dirname "$0")/python.sh" "$version")
fi
for candidate in "${TIDEMILL_PYTHON:-python3}" python3.11 python3.12 python3.13 python3.14; do
    if is_new_enough "$candidate"; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || fail "Python 3.11 or newer is needed: install it (Debian 12, Ubuntu 24.04: apt-get install python3 python3-venv), or name it: make setup TIDEMILL_PYTHON=/path/to/python3.11"
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "$python has no venv module: apt-get install $("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"

# Say on one line which package is being fetched; where the output is no terminal, say only what is done.
show_progress() {
    awk -v all="$(grep -c '^[a-z0-9].*==' "$requirements")" -v what="$requirements" -v live="$([ -t 2 ] && echo 1 || echo 0)" '
        /^Collecting / { name = $2; sub(/==.*/, "", name); n++ }
        /^Collecting |^Installing / {
            if (/^Installing/) name = "unpacking"
            if (live) { printf "\r\033[Ktidemill: %s: %d of %d packages: %s", what, n, all, name; fflush() }
        }
        END { if (live) printf "\r\033[K" }' >&2
}

if ! { [ -x "$venv/bin/python" ] && is_new_enough "$venv/bin/python" && has_version "$venv/bin/python"; }; then
    echo "tidemill: making $venv with $("$python" --version)" >&2
    "$python" -m venv --clear "$venv"
fi
echo "tidemill: installing $(grep -c '^[a-z0-9].*==' "$requirements") packages of $requirements in $venv" >&2
# Without --no-deps, the pip of Debian 12 looks past the pin where the same package is wanted with extras, too.
{
    "$venv/bin/python" -m pip install --progress-bar off --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: -r "$requirements" ||
        touch "$venv/.failed"
} | show_progress
! rm "$venv/.failed" 2>/dev/null ||
    fail "what $requirements names could not be installed in $venv: pip says why above. It takes wheels only, so it needs a package index and a machine that there are wheels for: Linux on x86-64 or arm64"
[ -z "$sources" ] ||
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --no-build-isolation -r "$sources" ||
    fail "what $sources names could not be built in $venv: pip says why above"
