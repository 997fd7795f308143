"""A worker's /metrics: what is in it, and that no client can make it grow."""

from __future__ import annotations

import asyncio
import re
import uuid

import grpc
import httpx
import pytest

from apparate.plan import Plan
from apparate_proto.inference import open_inference_pb2 as pb
from support.eventually import eventually_async
from support.infer import ask, client, json_body, stub
from support.models import a_worker, filled, items


async def page(c: httpx.AsyncClient) -> str:
    return (await c.get("/metrics")).text


async def test_names_and_paths_of_clients_make_no_series() -> None:
    async with a_worker() as (_, http, address), client(http) as c, grpc.aio.insecure_channel(address) as channel:

        async def strange() -> None:
            name = uuid.uuid4().hex
            assert (await c.post(f"/v2/models/{name}/infer", json=json_body(items(1)))).status_code == 404
            assert (await c.get(f"/{name}")).status_code == 404
            with pytest.raises(grpc.aio.AioRpcError):
                await stub(channel).ModelInfer(pb.ModelInferRequest(model_name=name))

        await ask(c, items(1))
        await strange()  # what is unknown is counted together
        before = len((await page(c)).splitlines())
        for _ in range(10):
            await asyncio.gather(*(strange() for _ in range(34)))
        assert len((await page(c)).splitlines()) == before


async def test_every_series_of_a_model_names_it_and_answers_name_their_ramp() -> None:
    async with a_worker() as (_, http, _), client(http) as c:
        await ask(c, items(3))
        text = await page(c)
    ours = [line for line in text.splitlines() if line.startswith("apparate_")]
    assert [line for line in ours if 'namespace="' not in line or 'model="' not in line] == []
    answers = [line for line in ours if re.match(r"apparate_(release_seconds|plain_seconds|exits|wrong_exits)", line)]
    assert answers and [line for line in answers if 'ramp="' not in line] == []
    told = next(line for line in ours if line.startswith("apparate_worker_info"))
    assert re.search(r'catalog="\w+",device="cpu",model="tiny",namespace="default",version="\d+\.\d+', told)


async def test_the_series_of_a_ramp_are_as_many_as_the_docs_say() -> None:
    async with a_worker() as (_, http, _), client(http) as c:
        await ask(c, items(1))
        text = await page(c)
    series = [line for line in text.splitlines() if not line.startswith("#")]
    assert len([line for line in series if 'ramp="1"' in line]) <= 40
    assert len(series) < 3 * 40 + 200


async def test_late_answers_are_held_against_the_objective() -> None:
    serving = {"slo": {"latencyMs": 0.000001, "target": 0.9}}
    async with a_worker(serving=serving) as (_, http, _), client(http) as c:
        await ask(c, items(4))

        async def counted() -> bool:
            text = await page(c)
            return (
                'apparate_slo_answers_total{model="tiny",namespace="default"} 4.0' in text
                and 'apparate_slo_late_answers_total{model="tiny",namespace="default"} 4.0' in text
                and 'apparate_slo_target_ratio{model="tiny",namespace="default"} 0.9' in text
            )

        await eventually_async(counted)


async def test_an_answer_that_leaves_early_is_set_against_what_the_plain_model_would_have_taken() -> None:
    async with a_worker(plan=Plan.of(1, [0], [1.0], "tiny")) as (worker, http, _), client(http) as c:
        filled(worker)
        await ask(c, items(1))

        async def seen() -> dict[str, float]:
            found = re.findall(r'apparate_(release|plain)_seconds_sum\{.*ramp="0"\} (\S+)', await page(c))
            sums = {name: float(value) for name, value in found}
            return sums if sums.get("release") else {}

        sums = await eventually_async(seen)
        assert sums["plain"] > sums["release"] > 0
