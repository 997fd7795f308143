"""The HTTP face of a worker, over real sockets."""

import asyncio
import contextlib
import random

import httpx
import numpy as np
import pytest
import torch

from apparate.plan import Plan
from support.infer import URL, ask, binary_body, client, json_body, scores
from support.models import X, a_prepared_model, a_worker, filled, items


def plain(prepared, x):
    return np.concatenate([prepared.model({"x": torch.from_numpy(row[None])}).numpy() for row in x])


async def test_without_a_plan_answers_are_the_plain_models_bit_for_bit():
    prepared, x = a_prepared_model(), items(6)
    async with a_worker(prepared) as (_, http, _), client(http) as c:
        for row in x:
            body, headers = binary_body(row[None])
            response = await c.post(URL, content=body, headers=headers)
            length = int(response.headers["inference-header-content-length"])
            got = np.frombuffer(response.content[length : length + 12], np.float32)
            np.testing.assert_array_equal(got, plain(prepared, row[None])[0])


@pytest.mark.parametrize("plan", [Plan.of(1, [0, 1, 2], [0.0] * 3, "tiny"), Plan(1)])
async def test_with_closed_ramps_answers_are_still_the_plain_models_bit_for_bit(plan):
    prepared, x = a_prepared_model(), items(4)
    async with a_worker(prepared, plan=plan) as (_, http, _), client(http) as c:
        for row in x:
            np.testing.assert_array_equal(scores(await ask(c, row[None])), plain(prepared, row[None]))


async def test_an_early_answer_carries_its_ramps_scores_label_and_name():
    prepared, x = a_prepared_model(sharp=3.0), items(1)
    async with a_worker(prepared, plan=Plan.of(4, [1], [1.0], "tiny")) as (worker, http, _), client(http) as c:
        filled(worker)
        answer = await ask(c, x, id="seven")
    state = prepared.model.start({"x": torch.from_numpy(x)})
    for k in (0, 1):
        state = prepared.model.advance(k, state)
    wanted = prepared.heads[1].logits(state.value).numpy()
    error = 1 - float(torch.softmax(torch.from_numpy(wanted), 1).max())
    assert answer["parameters"].pop("error_score") == pytest.approx(error, abs=1e-6)
    assert answer["parameters"] == {"plan_revision": 4, "exit_ramp": 1, "exit_layer": "ramp1"}
    assert (answer["id"], answer["outputs"][1]["data"]) == ("seven", [int(wanted.argmax())])
    np.testing.assert_allclose(scores(answer), wanted, rtol=1e-6)


async def test_a_request_of_many_items_gets_an_answer_of_many_rows():
    prepared, x = a_prepared_model(), items(21)
    async with a_worker(prepared) as (_, http, _), client(http) as c:
        answer = await ask(c, x, outputs=[{"name": "logits"}, {"name": "label"}, {"name": "exit_ramp"}])
    np.testing.assert_allclose(scores(answer), plain(prepared, x), rtol=1e-5, atol=1e-6)
    assert answer["outputs"][1]["data"] == plain(prepared, x).argmax(1).tolist()
    assert answer["outputs"][2]["data"] == [-1] * 21


async def test_who_asks_for_the_head_alone_gets_the_same_status_without_a_body():
    async with a_worker() as (_, http, _), client(http) as c:
        for path in ("/v2/health/live", "/v2/models/tiny", "/v2/models/other"):
            whole, head = await c.get(path), await c.head(path)
            assert (head.status_code, head.content) == (whole.status_code, b"")
            assert head.headers["content-length"] == str(len(whole.content))


async def test_health_and_metadata_say_what_is_served():
    async with a_worker() as (_, http, _), client(http) as c:
        assert (await c.get("/v2/health/live")).json() == {"live": True}
        assert (await c.get("/v2/health/ready")).status_code == 200
        assert "binary_tensor_data" in (await c.get("/v2")).json()["extensions"]
        model = (await c.get("/v2/models/tiny/versions/1")).json()
        assert model["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 16]}]
        assert (await c.get("/v2/models/tiny/ready")).json()["ready"] is True


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/other", 404),
        ("GET", "/v2/models/tiny/versions/2", 404),
        ("POST", "/v2/models/other/infer", 404),
        ("POST", "/v2/models/tiny/versions/9/infer", 404),
        ("GET", "/", 404),
        ("GET", "/v2/models/tiny/other", 404),
        ("POST", "/v2/models/tiny", 405),
        ("POST", "/v2/health/live", 405),
        ("POST", "/v2/models", 404),
        ("GET", "/v2/repository/index", 405),
        ("GET", URL, 405),
        ("DELETE", URL, 405),
    ],
)
async def test_what_is_not_there_is_refused_in_json(method, path, status):
    async with a_worker() as (_, http, _), client(http) as c:
        response = await c.request(method, path, json=json_body(items(1)) if method == "POST" else None)
        assert response.status_code == status
        assert response.json()["error"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "y"}, "input 'x' is missing"),
        ({"datatype": "FP64"}, "is FP64, the model takes FP32"),
        ({"shape": [16]}, "expected [-1, 16] with the batch first"),
        ({"shape": [1, 2, 8]}, "expected [-1, 16]"),
        ({"shape": [2, 8]}, "expected [-1, 16]"),
        ({"shape": [0, 16], "data": []}, "at least one item"),
        ({"shape": [-1, 16]}, "-1"),
        ({"shape": [1, 2**70]}, "shape"),
        ({"data": ["a"] * 16}, "no FP32"),
    ],
)
async def test_a_tensor_that_does_not_fit_the_model_is_a_400_that_names_it(change, words):
    body = json_body(items(1))
    body["inputs"][0] |= change
    async with a_worker() as (_, http, _), client(http) as c:
        response = await c.post(URL, json=body)
        assert response.status_code == 400
        assert words in response.json()["error"]
        assert (await c.get("/v2/health/live")).status_code == 200


async def test_unknown_inputs_outputs_and_timeouts_are_400s():
    async with a_worker() as (_, http, _), client(http) as c:
        for body in (
            json_body(items(1), outputs=[{"name": "nothing"}]),
            json_body(items(1), parameters={"timeout": "soon"}),
            json_body(items(1), parameters={"timeout": -5}),
            {"inputs": [*json_body(items(1))["inputs"], {"name": "z", "datatype": "FP32", "shape": [1], "data": [1]}]},
        ):
            assert (await c.post(URL, json=body)).status_code == 400


async def test_a_body_above_the_limit_is_a_413_that_names_both_sizes():
    limits = {"serving": {"protocols": {"http": {"maxBodyBytes": 4096}}}}
    async with a_worker(**limits) as (_, http, _), client(http) as c:
        response = await c.post(URL, content=b"x" * 5000)
        assert (response.status_code, response.json()["error"]) == (
            413,
            "the body has 5000 bytes, at most 4096 are allowed",
        )
        await ask(c, items(1))


async def test_a_body_of_unknown_length_is_cut_off_while_it_streams_in():
    limits = {"serving": {"protocols": {"http": {"maxBodyBytes": 4096}}}}
    sent = 0

    async def endless():
        nonlocal sent
        while True:
            yield b"x" * 1024
            sent += 1024
            await asyncio.sleep(0)

    async with a_worker(**limits) as (_, http, _), client(http) as c:
        with contextlib.suppress(httpx.TransportError):  # closed before the client has read the answer
            assert (await c.post(URL, content=endless())).status_code == 413
        assert sent < 64 * 2**20
        await ask(c, items(1))


async def test_a_client_that_waits_for_permission_to_send_too_much_is_refused_before_it_does():
    limits = {"serving": {"protocols": {"http": {"maxBodyBytes": 4096}}}}
    async with a_worker(**limits) as (_, http, _):
        host, port = http.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST {URL} HTTP/1.1\r\nHost: w\r\nContent-Length: 9999\r\nExpect: 100-continue\r\n\r\n".encode())
        assert b"413" in await asyncio.wait_for(reader.readline(), 5)
        writer.close()
        await writer.wait_closed()


async def test_random_bodies_never_make_a_5xx():
    rng = np.random.default_rng(1)
    good = binary_body(items(1))[0]
    async with a_worker() as (_, http, _), client(http) as c:
        for _ in range(300):
            body = bytearray(good)
            for at in rng.integers(0, len(body), rng.integers(1, 6)):
                body[at] = rng.integers(0, 256)
            headers = {"Inference-Header-Content-Length": str(rng.integers(0, len(body) + 9))}
            assert (await c.post(URL, content=bytes(body), headers=headers)).status_code in (200, 400)
        assert (await c.get("/v2/health/live")).status_code == 200


async def test_metrics_do_not_grow_with_what_clients_send():
    async with a_worker() as (_, http, _), client(http) as c:
        await ask(c, items(1))
        draw = random.Random(22)
        names = ["".join(draw.choices("abcxyz019._-", k=draw.randint(1, 40))) for _ in range(500)]
        await asyncio.gather(c.post("/v2/models/none/infer", json={}), c.get("/v2/none"))  # these may have a line each
        before = len((await c.get("/metrics")).text.splitlines())
        for start in range(0, 500, 50):
            some = names[start : start + 50]
            asked = [c.post(f"/v2/models/{name}/infer", json={}) for name in some]
            answers = await asyncio.gather(*asked, *(c.get(f"/{name}/{name}?{name}={name}") for name in some))
            assert {one.status_code for one in answers} <= {400, 404, 405}
        assert len((await c.get("/metrics")).text.splitlines()) == before


async def test_every_inference_metric_says_namespace_and_model_and_only_what_it_declares():
    from prometheus_client.parser import text_string_to_metric_families

    from apparate.contract.metrics import WORKER

    async with a_worker(plan=Plan.of(1, [1], [1.0], "tiny")) as (worker, http, _), client(http) as c:
        filled(worker)
        await ask(c, items(2))
        families = {one.name: one for one in text_string_to_metric_families((await c.get("/metrics")).text)}
    for metric in WORKER:
        for sample in families[metric.name].samples:
            assert set(sample.labels) - {"le"} == set(metric.labels), sample
            assert (sample.labels["namespace"], sample.labels["model"]) == ("default", "tiny")
    assert {one.labels["ramp"] for one in families["apparate_exits"].samples} <= {"0", "1", "2", "final"}
    assert [one.value for one in families["apparate_plan_revision"].samples] == [1]


async def test_every_declared_worker_metric_is_exposed():
    from apparate.contract.metrics import WORKER

    async with a_worker() as (_, http, _), client(http) as c:
        text = (await c.get("/metrics")).text
    for metric in WORKER:
        assert f"# HELP {metric.name}" in text


async def test_inputs_of_varying_length_are_padded_to_the_longest_of_their_batch():
    from apparate.contract.resource import TensorSpec

    ids = TensorSpec(name="ids", datatype="INT64", shape=(-1,), max_size=8)
    async with a_worker(a_prepared_model(inputs=[ids]), serving={"maxDelayMs": 20}) as (_, http, _), client(http) as c:

        def body(*values):
            return {"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, len(values)], "data": list(values)}]}

        alone = (await c.post(URL, json=body(3, 1))).json()
        together = await asyncio.gather(*(c.post(URL, json=body(*v)) for v in ((3, 1), (1, 2, 3, 4, 5, 6), (9,))))
        np.testing.assert_allclose(scores(together[0].json()), scores(alone), rtol=1e-5)
        assert (await c.post(URL, json=body(*range(9)))).status_code == 400


async def test_inputs_that_are_no_numbers_are_answered_as_the_model_would_and_never_exit():
    x = items(1)
    x[0, 3] = np.nan
    async with a_worker(plan=Plan.of(1, [0, 1, 2], [1.0] * 3, "tiny")) as (worker, http, _), client(http) as c:
        filled(worker)
        body, headers = binary_body(x)
        response = await c.post(URL, content=body, headers=headers)
        assert response.status_code == 200
        assert b'"exit_ramp":-1' in response.content
        assert X.name == "x" and (await c.get("/v2/health/live")).status_code == 200


@pytest.mark.parametrize("protocol", ["websocket", "h2c", "TLS/1.0"])
async def test_a_client_that_asks_for_another_protocol_is_answered_and_fills_no_log(protocol, caplog):
    async with a_worker() as (_, http, _), client(http) as c:
        upgrade = {"connection": "Upgrade", "upgrade": protocol}
        found = await c.get("/v2/health/live", headers=upgrade)
    assert found.status_code == 200
    assert [one.getMessage() for one in caplog.records if one.name.startswith("uvicorn")] == []
