"""Whether a model's adaptation stands still, since when and at whose word; how that is kept, and read off an object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

WHO_MAX = 128  # characters of a name
OWN_DOCUMENT = "its document"


@dataclass(frozen=True)
class Pause:
    """What holds of one model. Without arguments: it adapts, as nobody said otherwise."""

    paused: bool = False
    since: str = ""
    """Wall time, ISO 8601; empty when it is not known."""
    by: str = ""
    """Who or what asked for it; empty when that is not known."""
    document: bool = False
    """What the document said of it then. Once that says something else, it holds."""

    def dump(self) -> str:
        """As text that `load` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Pause | None:
        """From the text of `dump`; None for any other."""
        try:
            told = json.loads(text)
            return cls(bool(told["paused"]), str(told["since"]), str(told["by"]), bool(told["document"]))
        except (ValueError, TypeError, KeyError):
            return None


def held(known: Pause | None, said: Pause) -> Pause:
    """What holds of what was known and what the document says now: asked by hand lasts until the document changes."""
    return said if known is None or known.document != said.document else known


def document_says(paused: bool) -> Pause:
    """What a document says; who wrote it is not known."""
    return Pause(paused, by=OWN_DOCUMENT if paused else "", document=paused)


def said_by(thing: Mapping[str, Any]) -> Pause:
    """What an EarlyExitModel says, as plain data; of an object of a cluster with who last set it, and when."""
    paused = bool((((thing.get("spec") or {}).get("adaptation")) or {}).get("paused"))
    setters = [one for one in (thing.get("metadata") or {}).get("managedFields") or () if _sets(one)]
    last = max(setters, key=lambda one: str(one.get("time", "")), default=None)
    if last is None:
        return document_says(paused)
    return Pause(paused, str(last.get("time", "")), str(last.get("manager", ""))[:WHO_MAX], paused)


def _sets(entry: Mapping[str, Any]) -> bool:
    """Whether a field manager has set spec.adaptation.paused."""
    found: Any = entry.get("fieldsV1")
    for name in ("f:spec", "f:adaptation", "f:paused"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found is not None
