"""Hooks of the documentation's site: files of the project outside `docs` are named, not linked."""

from __future__ import annotations

import re
from typing import Any

FOLDERS = "examples|charts|tools|tests|services|operator|proto"
OUTSIDE = re.compile(rf"\[([^\]]+)\]\((?:\.\./)+(?:README|LICENSE|CONTRIBUTING|SECURITY|CHANGELOG|{FOLDERS})[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page: a link that only works in a checkout becomes its text."""
    return OUTSIDE.sub(r"\1", markdown)
