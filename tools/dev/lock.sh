#!/usr/bin/env bash
# Rewrite requirements.lock from pyproject.toml: keeps today's pins unless UPGRADE=1. No index address goes into the file.
set -euo pipefail
cd "$(dirname "$0")/../.."
.venv/bin/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --constraint tools/dev/constraints.txt \
    --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links ${UPGRADE:+--upgrade} \
    --custom-compile-command "make lock" --quiet --output-file requirements.lock
