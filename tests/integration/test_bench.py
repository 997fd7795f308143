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
        address = ["--address", grpc, "--http", http] if "grpc" in more else ["--address", http]
        argv = ["bench", "tiny", "--seconds", "1", *address, *more, "-o", "json"]
        assert await asyncio.to_thread(run, argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["answers"] > 20
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
    assert "no worker at 127.0.0.1:1" in capsys.readouterr().err
