"""The worker as a process: it says when it is ready, drains when told, and tells why it cannot start."""

import asyncio
import json
import re
import shutil
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest
import redis
import torch

from apparate.contract.stream import FIELD, feedback_key
from apparate.contract.wire import decode_feedback
from support.eventually import eventually, eventually_async
from support.infer import URL, binary_body, client, json_body, scores
from support.models import CRASH, ENDLESS, WILD, items, write_prepared
from support.processes import a_process
from support.worker_process import COMMAND, environ, ready


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    write_prepared(path, serving={"drainSeconds": 5, "device": "cpu"})
    return path


def refused(folder, **other):
    with a_process(COMMAND, environ(folder, **other)) as process:
        status = process.wait(60)
        return status, "\n".join(process.err)


async def keep_asking(addresses, stop, statuses):
    """Notes statuses of a client that goes to the first worker that says it is ready, 50 times a second; raises its
    failures."""
    asked = []

    async def one(address, x):
        body, headers = binary_body(x)
        async with client(address) as c:
            statuses.append((await c.post(URL, content=body, headers=headers)).status_code)

    async with httpx.AsyncClient(timeout=20) as probe:
        while not stop.is_set():
            for address in addresses:
                try:
                    if (await probe.get(f"http://{address}/v2/health/ready")).status_code == 200:
                        asked.append(asyncio.create_task(one(address, items(1))))
                        break
                except httpx.TransportError:
                    continue
            await asyncio.sleep(0.02)
    await asyncio.gather(*asked)


async def test_sigterm_under_load_loses_no_request_and_no_feedback(folder, redis_server):
    options = {"REDIS_URL": redis_server, "GRACE_SECONDS": "2"}  # while a busy client learns of it
    with (
        a_process(COMMAND, environ(folder, NAME="first", **options)) as first,
        a_process(COMMAND, environ(folder, NAME="second", **options)) as second,
    ):
        addresses = [(await asyncio.to_thread(ready, one))["http"] for one in (first, second)]
        stop, statuses = asyncio.Event(), []
        asking = asyncio.create_task(keep_asking(addresses, stop, statuses))
        await eventually_async(lambda: len(statuses) > 20)
        first.send(signal.SIGTERM)
        assert await asyncio.to_thread(first.wait, 60) == 0
        asked = len(statuses)
        await eventually_async(lambda: len(statuses) > asked + 10)
        stop.set()
        await asking
        second.send(signal.SIGTERM)
        assert await asyncio.to_thread(second.wait, 60) == 0
    assert set(statuses) == {200}
    with redis.Redis.from_url(redis_server, socket_timeout=5) as r:
        found = [decode_feedback(fields[FIELD]) for _, fields in r.xrange(feedback_key("default/tiny/local"))]
    assert sum(len(one) for one in found) == len(statuses)
    assert {one.worker for one in found} == {"first", "second"}


def test_a_served_model_answers_as_the_model_that_was_prepared(folder):
    with a_process(COMMAND, environ(folder, NAME="w")) as process:
        said = ready(process)
        assert said["name"] == "w"
        x = items(1)
        answer = httpx.post(f"http://{said['http']}{URL}", json=json_body(x)).json()
        process.send(signal.SIGTERM)
        assert process.wait(60) == 0
        assert len(process.out) == 1
        assert all(json.loads(line)["event"] for line in process.err)
    torch.manual_seed(1)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)).eval()
    with torch.inference_mode():
        np.testing.assert_array_equal(scores(answer), model(torch.from_numpy(x)).numpy())


def test_a_second_signal_ends_it_at_once(folder):
    with a_process(COMMAND, environ(folder, GRACE_SECONDS="60")) as process:
        ready(process)
        process.send(signal.SIGTERM)
        eventually(lambda: any("draining" in line for line in process.err))
        begun = time.monotonic()
        process.send(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        assert time.monotonic() - begun < 30


def test_a_client_that_has_sent_half_a_request_when_draining_ends_is_told_to_go_elsewhere(folder):
    with a_process(COMMAND, environ(folder)) as process:
        host, port = ready(process)["http"].split(":")
        with socket.create_connection((host, int(port)), timeout=60) as slow:
            ask = f"POST {URL} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n"
            slow.sendall(ask.encode())
            assert slow.recv(1000).startswith(b"HTTP/1.1 100 ")  # it waits for the rest
            slow.sendall(b"{")
            process.send(signal.SIGTERM)
            assert slow.recv(1000).startswith(b"HTTP/1.1 503 ")
        assert process.wait(60) == 0
        assert "Exception in ASGI" not in "\n".join(process.err)


def test_a_prepared_model_that_was_changed_is_refused_by_file(tmp_path):
    path = write_prepared(tmp_path)
    weights = tmp_path / "prepared" / "default" / "tiny" / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    status, said = refused(path.parent)
    assert status == 2
    assert "model.safetensors was changed after it was prepared" in said


def test_a_model_that_is_not_prepared_is_refused_with_the_command_to_prepare_it(tmp_path):
    path = write_prepared(tmp_path)
    (tmp_path / "prepared" / "default" / "tiny").rename(tmp_path / "elsewhere")
    status, said = refused(path.parent)
    assert (status, "apparate prepare" in said) == (2, True)
    with a_process(COMMAND, environ(tmp_path, PREPARED=str(tmp_path / "elsewhere"))) as process:
        ready(process)


def test_a_document_with_a_mistake_is_refused_by_file_line_and_field(tmp_path, folder):
    text = (folder / "tiny.yaml").read_text().replace("maxBatch: 8", "maxBatch: 800")
    (tmp_path / "tiny.yaml").write_text(text)
    status, said = refused(tmp_path)
    line = next(i for i, one in enumerate(text.splitlines(), 1) if "maxBatch" in one)
    assert (status, f"tiny.yaml:{line}: spec.serving.maxBatch is 800" in said) == (2, True)


def test_a_misspelt_setting_is_refused_by_name(folder):
    status, said = refused(folder, DOCUMNET="x")
    assert (status, "EEM_WORKER_DOCUMNET is not a setting" in said) == (2, True), said


def wild(x, value):
    """The items, one of them such that the model does what `support.models.WILD` says."""
    x = x.copy()
    x[0, 0] = value
    return x


def in_flight(address):
    text = httpx.get(f"http://{address}/metrics").text
    return float(re.search(r"^apparate_in_flight_requests\S* (\S+)", text, re.MULTILINE)[1])


@pytest.fixture(scope="module")
def wild_folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("wild")
    write_prepared(path, before=WILD, serving={"drainSeconds": 1, "device": "cpu", "maxBatch": 1})
    return path


def test_a_worker_whose_pass_hangs_answers_with_errors_and_ends_with_a_reason(wild_folder, tmp_path):
    told = tmp_path / "termination-log"
    told.touch()
    with a_process(COMMAND, environ(wild_folder, TERMINATION_LOG=str(told))) as process, ThreadPoolExecutor(4) as pool:
        address = ready(process)["http"]
        begun = time.monotonic()
        ask = lambda x: httpx.post(f"http://{address}{URL}", json=json_body(x), timeout=50)  # noqa: E731
        hanging = pool.submit(ask, wild(items(1), ENDLESS))
        eventually(lambda: in_flight(address) == 1)
        waiting = [pool.submit(ask, items(1)) for _ in range(2)]
        assert hanging.result(50).status_code == 503
        assert time.monotonic() - begun < 30  # 4 to 5 s where nothing else runs
        assert httpx.get(f"http://{address}/v2/health/live").status_code == 503
        assert {one.result(50).status_code for one in waiting} == {503}
        assert process.wait(60) == 1
    reason = json.loads(told.read_text())
    assert (reason["reason"], "the device has not gone on for" in reason["message"]) == ("DeviceLost", True)
    assert any("in advance" in line and "stack" in line for line in process.err)  # where it hung


def test_a_worker_that_loses_its_device_answers_with_an_error_and_ends_with_a_reason(wild_folder, tmp_path):
    told = tmp_path / "termination-log"
    told.touch()
    with a_process(COMMAND, environ(wild_folder, TERMINATION_LOG=str(told))) as process:
        address = ready(process)["http"]
        answer = httpx.post(f"http://{address}{URL}", json=json_body(wild(items(1), CRASH)), timeout=50)
        assert (answer.status_code, "CUDA error" in answer.json()["error"]) == (503, True)
        assert process.wait(60) == 1
    reason = json.loads(told.read_text())
    assert reason["reason"] == "DeviceLost" and "illegal memory access" in reason["message"]


@pytest.mark.parametrize("again", [False, True], ids=["at its deadline", "at once when told again"])
def test_a_worker_that_is_told_to_stop_while_a_pass_hangs_ends(tmp_path, again):
    drain_s = 60 if again else 1
    write_prepared(tmp_path, before=WILD, serving={"drainSeconds": drain_s, "device": "cpu", "stallSeconds": 3600})
    with a_process(COMMAND, environ(tmp_path)) as process, ThreadPoolExecutor(1) as pool:
        address = ready(process)["http"]
        body = json_body(wild(items(1), ENDLESS))
        hanging = pool.submit(httpx.post, f"http://{address}{URL}", json=body, timeout=60)
        eventually(lambda: in_flight(address) == 1)
        begun = time.monotonic()
        process.send(signal.SIGTERM)
        eventually(lambda: any("draining" in line for line in process.err))
        if again:
            process.send(signal.SIGTERM)
        assert process.wait(50) == (128 + signal.SIGTERM if again else 3)
        took_s = time.monotonic() - begun
        assert took_s < 30 if again else 1 <= took_s < 20  # feedback and connections have 2 s more
        assert isinstance(hanging.exception(20), httpx.TransportError) or hanging.result().status_code == 503


def test_a_worker_that_still_warms_up_stops_when_it_is_told_to(tmp_path):
    endless = "\n    while bool((v_inputs_0 == 0.0).all()):\n        v_inputs_0 = v_inputs_0 * 1.0"
    write_prepared(tmp_path, before=endless, serving={"device": "cpu"})
    with a_process(COMMAND, environ(tmp_path, LOG_LEVEL="DEBUG")) as process:
        eventually(lambda: any("warming up" in line for line in process.err), within=60)
        process.send(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_model_that_cannot_fit_into_memory_is_refused_with_need_and_limit(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "large")
    weights = tmp_path / "large" / "prepared" / "default" / "tiny" / "model.safetensors"
    with weights.open("r+b") as file:
        file.truncate(40 * 2**30)  # sparse: it takes no room on the disk
    told = tmp_path / "termination-log"
    told.touch()
    limited = ["bash", "-c", f'ulimit -v {30 * 2**20} && exec "$0" "$@"', *COMMAND]
    with a_process(limited, environ(tmp_path / "large", TERMINATION_LOG=str(told))) as process:
        assert process.wait(60) == 2
    reason = json.loads(told.read_text())
    assert reason["reason"] == "ModelLoadFailed"
    assert re.search(r"needs [48]0\.0 GiB to load \(40\.0 GiB of weights\), limit \d+\.\d GiB: the ", reason["message"])


def resident_mib(pid):
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


async def test_messages_above_64_mib_are_refused_and_take_no_memory(folder):
    large = bytes(65 * 2**20)
    with a_process(COMMAND, environ(folder)) as process:
        said = await asyncio.to_thread(ready, process)
        before = resident_mib(process.pid)
        async with client(said["http"]) as c:
            response = await c.post(URL, content=large)
            assert (response.status_code, response.json()["error"]) == (
                413,
                "the body has 68157440 bytes, at most 67108864 are allowed",
            )
        options = [("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(said["grpc"], options=options) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(large)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "67108864" in error.value.details()
        assert resident_mib(process.pid) - before < 32
        process.send(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0
