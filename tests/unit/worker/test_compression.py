"""Bodies are inflated within their limit, and answers compressed only where it is wanted and pays."""

import gzip
import resource
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apparate_worker.errors import InvalidRequest, TooLarge
from apparate_worker.protocol.compression import DEFLATE, GZIP, INLINE_BYTES, coding_of, compressed, inflate

LARGE = np.arange(INLINE_BYTES, dtype="<u2").tobytes()


def raw_deflate(data):
    zipping = zlib.compressobj(wbits=-15)
    return zipping.compress(data) + zipping.flush()


CODED = {"gzip": (GZIP, gzip.compress), "deflate": (DEFLATE, zlib.compress), "raw deflate": (DEFLATE, raw_deflate)}
PLAIN = {"gzip": gzip.decompress, "deflate": zlib.decompress}


@pytest.mark.parametrize("kind", CODED)
@pytest.mark.parametrize("data", [b"", b"{}", LARGE], ids=["empty", "small", "large"])
async def test_a_body_comes_out_as_it_went_in(kind, data):
    coding, encode = CODED[kind]
    assert await inflate(encode(data), coding, len(LARGE)) == data


@pytest.mark.parametrize("kind", CODED)
@pytest.mark.parametrize("over", [0, 1])
async def test_the_limit_is_of_what_comes_out(kind, over):
    coding, encode = CODED[kind]
    body = encode(bytes(1000 + over))
    if over:
        with pytest.raises(TooLarge, match="more than 1000 bytes"):
            await inflate(body, coding, 1000)
    else:
        assert len(await inflate(body, coding, 1000)) == 1000


@pytest.mark.parametrize("kind", CODED)
async def test_a_body_that_ends_just_behind_the_part_inflated_at_once_is_whole(kind):
    coding, encode = CODED[kind]
    for size in range(INLINE_BYTES - 3, INLINE_BYTES + 300, 7):  # 258 bytes may be left in zlib
        assert len(await inflate(encode(bytes(size)), coding, 2 * INLINE_BYTES)) == size


async def test_a_bomb_is_refused_before_it_takes_memory():
    zipping, megabyte = zlib.compressobj(1, wbits=31), bytes(2**20)
    bomb = b"".join(zipping.compress(megabyte) for _ in range(512)) + zipping.flush()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TooLarge):
        await inflate(bomb, GZIP, 2**20)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 2**10


BROKEN = {  # each has a name: gzip writes the time into its header, and bytes would be the name of the test
    "no gzip": (GZIP, b"{}", "not gzip"),
    "empty": (GZIP, b"", "not whole"),
    "cut off": (GZIP, gzip.compress(b"abc")[:-1], "not whole"),
    "bytes behind": (GZIP, gzip.compress(b"abc") + b"more", "4 bytes follow"),
    "twice": (GZIP, gzip.compress(b"a") * 2, "bytes follow"),
    "no deflate": (DEFLATE, b"\xff\xff", "not deflate"),
    "wrong sum": (DEFLATE, zlib.compress(b"abc")[:-4] + b"abcd", "not deflate"),
}


@pytest.mark.parametrize(("coding", "body", "words"), BROKEN.values(), ids=BROKEN)
async def test_a_body_that_is_not_what_it_says_is_refused(coding, body, words):
    with pytest.raises(InvalidRequest, match=words):
        await inflate(body, coding, 1000)


@given(st.sampled_from([GZIP, DEFLATE]), st.binary(max_size=80))
async def test_no_bytes_do_more_than_an_invalid_request(coding, body):
    try:
        await inflate(body, coding, 1000)
    except (InvalidRequest, TooLarge) as error:
        assert str(error).startswith("the body") or "bytes follow" in str(error)


@pytest.mark.parametrize(
    ("header", "coding"),
    [(b"gzip", GZIP), (b"x-gzip", GZIP), (b" GZip ", GZIP), (b"deflate", DEFLATE), (b"identity", None), (b"", None)],
)
def test_a_coding_is_known_by_its_names(header, coding):
    assert coding_of(header) == coding


@pytest.mark.parametrize("header", [b"br", b"gzip, gzip", b"gzip;q=1", b"\xff"])
def test_another_coding_is_refused_by_name(header):
    with pytest.raises(InvalidRequest, match=r"Content-Encoding .* there are: gzip, deflate"):
        coding_of(header)


TEXT = b"[" + b"0.12345," * 4000 + b"1]"


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        (b"gzip", GZIP),
        (b"deflate", DEFLATE),
        (b"gzip, deflate, br", GZIP),
        (b"deflate, gzip;q=0.5", DEFLATE),
        (b"gzip;q=0, *", DEFLATE),
        (b"*", GZIP),
        (b"identity", None),
        (b"br", None),
        (b"gzip;q=0", None),
        (b"gzip;q=x", None),
        (b"", None),
    ],
)
async def test_an_answer_is_compressed_as_its_client_likes_best(accepted, coding):
    content, found = await compressed(TEXT, accepted)
    assert found == coding
    assert (PLAIN[coding.decode()](content) if coding else content) == TEXT
    assert coding is None or len(content) < len(TEXT) / 10


async def test_a_large_answer_comes_out_as_it_went_in():
    content, coding = await compressed(TEXT * 20, b"gzip")
    assert coding == GZIP
    assert gzip.decompress(content) == TEXT * 20


async def test_an_answer_that_gains_nothing_is_sent_as_it_is():
    noise = np.random.default_rng(0).bytes(100_000)
    for content in (b"{}", TEXT[:10_000], noise):
        assert await compressed(content, b"gzip") == (content, None)
