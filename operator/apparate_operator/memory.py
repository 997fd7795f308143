"""Memory that was freed goes back to the system: a burst of a thousand objects must not stay as an empty heap."""

from __future__ import annotations

import ctypes
import sys

M_ARENA_MAX = -8  # of mallopt, from malloc.h of glibc
ARENAS = 2  # by default each of our threads has a heap of its own, none of which is ever small again


def _libc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    return libc if libc is not None and hasattr(libc, "malloc_trim") else None  # musl has no such thing


def few_heaps() -> None:
    """Let threads share heaps. Call once, before there are threads."""
    libc = _libc()
    if libc is not None:
        libc.mallopt(M_ARENA_MAX, ARENAS)


def give_back() -> None:
    """Hand freed pages to the system; takes some milliseconds."""
    libc = _libc()
    if libc is not None:
        libc.malloc_trim(0)
