"""`python -m apparate_worker.prepare.fetch URL FOLDER`: a prepared model from S3, before a worker starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from apparate.service.signals import end_on_sigterm
from apparate.service.termination import LOG, tell_end
from apparate_worker.prepare.failures import PrepareFailure
from apparate_worker.prepare.sources import STORE, secrets_of
from apparate_worker.prepare.transfer import download_s3


def main() -> int:
    """Fetch and say in one line why not; the exit status."""
    end_on_sigterm()
    if len(sys.argv) != 3:
        print("usage: python -m apparate_worker.prepare.fetch URL FOLDER", file=sys.stderr)
        return 2
    url, folder = sys.argv[1], Path(sys.argv[2])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        download_s3(url, folder, secrets_of(STORE, os.environ))
    except PrepareFailure as failure:
        tell_end(LOG, failure.reason, str(failure))
        print(f"error: {failure}", file=sys.stderr)
        return failure.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
