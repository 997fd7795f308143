"""HTTP content codings: gzip and deflate, bounded on the way in, only where it pays on the way out."""

from __future__ import annotations

import asyncio
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from apparate_worker.errors import InvalidRequest, TooLarge

GZIP, DEFLATE = b"gzip", b"deflate"
NAMES = {GZIP: GZIP, b"x-gzip": GZIP, DEFLATE: DEFLATE}
WINDOW = {GZIP: 31, DEFLATE: 15}
RAW_WINDOW = -15  # what some clients call deflate: the same without its frame
INLINE_BYTES = 2**18  # inflated or compressed in about a millisecond; more would hold up the event loop
WORTH_BYTES = 2**14  # a shorter answer arrives no sooner for being compressed, in a cluster's network
SAMPLE_BYTES, SAMPLE_SHARE = 4096, 0.8  # an answer whose end shrinks by less is sent as it is
FASTEST = 1
LARGE = ThreadPoolExecutor(2, "compression")
"""Few at a time: a small body may say that it is as large as allowed, and hundreds of them would take all memory."""


def coding_of(header: bytes) -> bytes | None:
    """The coding that a Content-Encoding header names, None for none. Raises InvalidRequest for any other."""
    name = header.strip().lower()
    if name in (b"", b"identity"):
        return None
    if name not in NAMES:
        raise InvalidRequest(f"Content-Encoding {name[:40].decode('latin-1')!r} is not known; there are: gzip, deflate")
    return NAMES[name]


async def inflate(body: bytes, coding: bytes, limit: int) -> bytes:
    """The body as it was before `coding`. Takes no more memory than a plain body of `limit` bytes.

    Raises TooLarge when it has more than `limit` bytes, InvalidRequest when it is not that coding or not whole.
    """
    window = _window(body, coding)
    try:
        found, zipped = _inflate(body, window, min(INLINE_BYTES, limit + 1))
        if len(found) == INLINE_BYTES <= limit and not zipped.eof:  # from the start: joining two halves would copy both
            loop = asyncio.get_running_loop()
            found, zipped = await loop.run_in_executor(LARGE, _inflate, body, window, limit + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the body is not {coding.decode()}: {error}") from None
    if len(found) > limit:
        raise TooLarge(f"the body has more than {limit} bytes when it is inflated, the most allowed")
    if not zipped.eof:
        raise InvalidRequest(f"the body is not whole: its {coding.decode()} data ends early")
    if zipped.unused_data:
        raise InvalidRequest(f"{len(zipped.unused_data)} bytes follow the body's {coding.decode()} data")
    return found


def _inflate(body: bytes, window: int, most: int) -> tuple[bytes, Any]:
    """(up to `most` bytes of what is in the body, what knows whether that is all). Raises zlib.error."""
    zipped = zlib.decompressobj(window)
    return zipped.decompress(body, most), zipped


def _window(body: bytes, coding: bytes) -> int:
    """zlib's window bits. Deflate has a frame whose first two bytes, as a number, are a multiple of 31."""
    if coding == DEFLATE and not (body[:1] and body[0] & 15 == 8 and int.from_bytes(body[:2]) % 31 == 0):
        return RAW_WINDOW
    return WINDOW[coding]


async def compressed(content: bytes, accepted: bytes) -> tuple[bytes, bytes | None]:
    """(content, its coding) in a coding that the Accept-Encoding header `accepted` allows; None: as it was."""
    if len(content) < WORTH_BYTES or (coding := _chosen(accepted)) is None:
        return content, None
    if len(zlib.compress(content[-SAMPLE_BYTES:], FASTEST)) > SAMPLE_SHARE * SAMPLE_BYTES:
        return content, None
    if len(content) <= INLINE_BYTES:
        return _deflate(content, coding), coding
    return await asyncio.get_running_loop().run_in_executor(LARGE, _deflate, content, coding), coding


def _deflate(content: bytes, coding: bytes) -> bytes:
    zipping = zlib.compressobj(FASTEST, zlib.DEFLATED, WINDOW[coding])
    return zipping.compress(content) + zipping.flush()


def _chosen(accepted: bytes) -> bytes | None:
    """The coding that a client likes best, gzip when it likes several alike."""
    weights: dict[bytes, float] = {}
    for part in accepted.lower().split(b","):
        name, _, weight = part.partition(b";")
        weights[NAMES.get(name.strip(), name.strip())] = _weight(weight)
    rest = weights.get(b"*", 0.0)
    best = max(WINDOW, key=lambda coding: weights.get(coding, rest))
    return best if weights.get(best, rest) > 0 else None


def _weight(parameter: bytes) -> float:
    name, _, value = parameter.partition(b"=")
    if name.strip() != b"q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0
