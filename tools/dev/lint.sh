#!/usr/bin/env bash
# Every static check; all of them run, and the status is that of the worst.
set -uo pipefail
cd "$(dirname "$0")/../.."
status=0
step() { printf 'lint: %s\n' "$*"; ".venv/bin/$1" "${@:2}" || status=1; }
step ruff format --check --quiet
step ruff check --quiet
step mypy services operator tools/demo/apparate_demo tools/cluster/apparate_cluster tools/images/apparate_images
step lint-imports --no-logo
if [ -f charts/apparate/Chart.yaml ]; then
    echo "lint: helm lint"
    .cache/cluster/bin/helm lint --quiet --strict charts/apparate || status=1
fi
exit $status
