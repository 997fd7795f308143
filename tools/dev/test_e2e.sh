#!/usr/bin/env bash
# The end-to-end tests as a part of `make test`: where this machine can have a cluster with pods, which in CI it must.
# Takes pytest's arguments.
set -euo pipefail
cd "$(dirname "$0")/../.."
unset MAKEFLAGS MFLAGS ARGS # they are for pytest, not for the targets below
if [ -n "${CI:-}" ] && [ "$CI" != false ]; then
    make --no-print-directory cluster-up
    trap 'make --no-print-directory cluster-down' EXIT
else
    lack=$(PYTHONPATH=tools/cluster .venv/bin/python -c 'from apparate_cluster.node.cluster import missing; print(missing())')
    if [ -n "$lack" ]; then
        echo "end-to-end tests are left out: $lack"
        exit 0
    fi
fi
PYTHONPATH=tools/images:tools/cluster .venv/bin/python -m apparate_images --links .cache/images --engine buildah # others write no archives
EEM_TEST_REQUIRE=e2e .venv/bin/python -m pytest -m e2e tests/cluster tests/e2e "$@" || [ $? = 5 ] # -k may leave none
