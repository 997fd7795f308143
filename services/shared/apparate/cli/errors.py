"""Errors that a user can do something about: one line, no traceback, a status."""

from __future__ import annotations

BAD_INPUT = 2
FAILED = 1


class CommandError(Exception):
    """Ends the command with one line on stderr. `status` is BAD_INPUT when the input is to blame, else FAILED."""

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.status = status
