#!/bin/sh
# The conformance suite with more of everything; what it found is printed, with the input.
set -eu
export EEM_CONFORMANCE_CASES="${EEM_CONFORMANCE_CASES:-10000}" EEM_FUZZ_SECONDS="${EEM_FUZZ_SECONDS:-120}"
exec .venv/bin/python -m pytest --timeout=3600 -s tests/conformance "$@"
