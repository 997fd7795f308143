"""`python -m apparate_worker.prepare -f model.yaml`: the same as `apparate prepare`, for images without the command."""

from __future__ import annotations

from apparate.cli.prepare import main

if __name__ == "__main__":
    main()
