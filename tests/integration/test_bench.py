"""`apparate bench` against a real worker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from apparate.cli.main import run
from support.models import a_worker, items


@pytest.mark.parametrize("more", [["--connections", "4"], ["--rate", "100"], ["--protocol", "grpc"]])
async def test_it_tells_throughput_latency_and_where_answers_left(
    more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    async with a_worker() as (_, http, grpc):
        address = ["--address", grpc if "grpc" in more else http]
        argv = ["bench", "tiny", "--seconds", "1", *address, *more, "-o", "json"]
        assert await asyncio.to_thread(run, argv) == 0
    said = capsys.readouterr().out
    found = json.loads(said[said.index("{\n") :])  # the worker, in this process, logs to the same place
    assert found["answers"] > 0
    assert 0 < found["p25_ms"] <= found["p50_ms"] <= found["p99_ms"]
    assert (sum(found["exit_rates"].values()), found["errors"]) == (pytest.approx(1.0), {})


async def test_requests_of_ones_own_are_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "mine.npz", x=items(8))
    async with a_worker() as (_, http, _):
        argv = ["bench", "tiny", "--seconds", "1", "--address", http, "--input", str(tmp_path / "mine.npz")]
        assert await asyncio.to_thread(run, argv) == 0
    assert "throughput_rps" in capsys.readouterr().out


async def test_a_model_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    async with a_worker() as (_, http, _):
        assert await asyncio.to_thread(run, ["bench", "nobody", "--address", http]) == 2
    assert "nobody" in capsys.readouterr().err


def test_a_worker_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "tiny", "--address", "127.0.0.1:1"]) == 1
    assert "no worker speaks HTTP at 127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--address", "http://127.0.0.1:8080"], "must be HOST:PORT, without http://"),
        (["--protocol", "carrier"], "must be one of http, grpc"),
        (["--rate", "0"], "rate"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "tiny", *argv]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("content", "words"), [({"y": np.zeros(3)}, "has no array x; it has y"), (None, "is no .npz")])
async def test_input_that_does_not_fit_is_refused_by_array(
    content: dict[str, np.ndarray] | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.npz"
    path.write_text("no archive")
    if content is not None:
        np.savez(path, **content)
    async with a_worker() as (_, http, _):
        assert await asyncio.to_thread(run, ["bench", "tiny", "--address", http, "--input", str(path)]) == 2
    assert words in capsys.readouterr().err


async def test_a_name_with_odd_letters_and_another_protocols_port_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    async with a_worker() as (_, http, grpc):
        assert await asyncio.to_thread(run, ["bench", "no such/model", "--address", http]) == 2
        assert await asyncio.to_thread(run, ["bench", "tiny", "--address", grpc]) == 1
        assert await asyncio.to_thread(run, ["bench", "tiny", "--address", http, "--protocol", "grpc"]) == 1
        assert await asyncio.to_thread(run, ["bench", "nobody", "--address", grpc, "--protocol", "grpc"]) == 2
    said = capsys.readouterr().err
    assert [words for words in ("speaks HTTP", "speaks gRPC", "nobody") if words not in said] == []
