"""What a preparation says while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Step:
    """One word from a preparation: which stage, how much of it is done (0..1), and a sentence when there is news."""

    stage: str
    share: float
    message: str = ""

    def to_json(self) -> dict[str, Any]:
        """As one line of the log."""
        news = {"message": self.message} if self.message else {}
        return {"stage": self.stage, "share": round(self.share, 3)} | news


Progress = Callable[[Step], None]


def quiet(_: Step) -> None:
    """Progress that nobody watches."""
