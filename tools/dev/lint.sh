#!/usr/bin/env bash
# Every static check; all of them run, and the status is that of the worst.
set -uo pipefail
cd "$(dirname "$0")/../.."
status=0
step() { printf 'lint: %s\n' "$*"; ".venv/bin/$1" "${@:2}" || status=1; }
step ruff format --check --quiet
step ruff check --quiet
step mypy services operator tools/demo/apparate_demo
step lint-imports --no-logo
exit $status
