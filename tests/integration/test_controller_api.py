"""The HTTP API over real loops on a real Redis, with the session that ships."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
import yaml

from apparate.cli.main import run
from apparate.cli.target import asker
from apparate.contract.metrics import CONTROLLER
from apparate.contract.recording import read_recording
from apparate.contract.resource import PlanStatus
from apparate.contract.stream import FIELD, feedback_key, worker_key, workers_key
from apparate.contract.wire import encode_feedback
from apparate.plan import Plan
from apparate.service.redis_client import connect
from apparate.service.telemetry import Telemetry
from apparate_controller.app import create_app
from apparate_controller.entry import Entry
from apparate_controller.models import Models
from apparate_controller.replay import catalog_indices
from apparate_controller.sinks.redis import RedisPlanSink
from support.control import CATALOG, MODEL, a_batch
from support.controller_api import Api, an_api, fed, served
from support.eventually import eventually_async

pytestmark = pytest.mark.redis


@pytest.fixture
async def api(redis_server, tmp_path) -> AsyncIterator[Api]:
    async with an_api(redis_server, tmp_path) as found:
        yield found


async def test_all_models_are_listed_also_those_that_are_not_ready(api):
    found = {one["name"]: one for one in (await api.get("/v1/models")).json()["models"]}
    assert (found["m"]["ready"], found["unprepared"]["ready"]) == (True, False)
    assert "not prepared yet" in found["unprepared"]["reason"]


async def test_a_model_tells_window_plan_decisions_and_counts(api):
    await fed(api, 50)
    found = await api.model()
    assert found["plan"]["revision"] >= 1
    assert found["plan"]["reason"] == found["decisions"][0]["reason"] == "Started"
    assert found["window"]["records"] == 200
    assert found["feedback"]["records"] == 200


async def test_a_model_that_is_not_ready_is_described_too(api):
    found = await api.model("unprepared")
    assert (found["ready"], found["plan"]["revision"], found["decisions"]) == (False, 0, [])


async def test_delivery_counts_the_workers_that_run_the_plan(api):
    revision = (await api.model())["plan"]["revision"]
    async with contextlib.aclosing(connect(api.url)) as client:
        for name, runs in (("new", revision), ("old", revision - 1)):
            await client.set(worker_key(MODEL, name), json.dumps({"revision": runs, "in_flight": 1}), ex=30)
            await client.sadd(workers_key(MODEL), name)

    async def delivered():
        delivery = (await api.model())["delivery"]
        return delivery if delivery["workers"] == 2 else None

    found = await eventually_async(delivered)
    assert found == {"revision": revision, "workers": 2, "updatedWorkers": 1}


@pytest.mark.parametrize("which", ["active", "all"])
async def test_the_window_can_be_downloaded_as_a_recording_that_replay_reads(api, tmp_path, which):
    await fed(api, 10)
    answer = await api.get(f"/v1/models/default/m/recording?ramps={which}")
    path = tmp_path / "window.npz"
    path.write_bytes(answer.content)
    found = read_recording(path)
    assert (found.err.shape, found.batch.tolist()) == ((40, 3), [4] * 40)
    assert found.catalog is not None and found.catalog.digest == CATALOG.digest
    assert catalog_indices(found, found.catalog) == [0, 1, 2]


async def test_a_recording_of_a_model_that_is_not_ready_is_refused_with_the_reason(api):
    answer = await api.get("/v1/models/default/unprepared/recording")
    assert (answer.status_code, "not prepared yet" in answer.json()["detail"]) == (503, True)


async def test_other_budgets_can_be_tried_on_the_window(api):
    await fed(api, 10)
    found = (await api.get("/v1/models/default/m/what-if?accuracyLoss=0.01&accuracyLoss=0.5&rampOverhead=0.1")).json()
    assert found["records"] == 40
    assert [one["accuracyLoss"] for one in found["answers"]] == [0.01, 0.5]
    assert found["answers"][0]["lossUpper"] is None  # too few records for a certificate
    assert (await api.model())["plan"]["revision"] == 1


@pytest.mark.parametrize("asked", ["", "accuracyLoss=0", "accuracyLoss=0.6", "&".join(["accuracyLoss=0.01"] * 17)])
async def test_a_budget_out_of_range_is_refused_by_name(api, asked):
    answer = await api.get(f"/v1/models/default/m/what-if?{asked}")
    assert (answer.status_code, "accuracyLoss" in answer.text) == (422, True)


@pytest.mark.parametrize(
    "path", ["/v1/models/default/nobody", "/v1/models/default/nobody/recording", "/v1/models/default/nobody/plans"]
)
async def test_an_unknown_model_is_404(api, path):
    answer = await api.get(path)
    assert (answer.status_code, answer.json()) == (404, {"detail": "there is no model default/nobody here"})


async def test_a_model_that_waits_for_its_catalog_does_not_make_the_controller_unready(api):
    answer = await api.get("/readyz")
    assert (answer.status_code, list(answer.json()["problems"])) == (200, ["default/unprepared/local"])


async def test_a_loop_that_does_not_turn_is_unhealthy(api):
    impatient = create_app(api.models, Telemetry(CONTROLLER), stuck_s=0)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(impatient), base_url="http://controller") as client:
        answer = await client.get("/healthz")
    assert (answer.status_code, "has not turned for" in answer.json()["problems"][MODEL]) == (503, True)


async def test_loops_that_turn_are_healthy(api):
    assert (await api.get("/healthz")).json() == {"status": "ok", "problems": {}}


async def test_metrics_are_all_declared_and_none_takes_its_labels_from_a_client(api):
    await fed(api, 5)
    before = (await api.get("/metrics")).text
    for i in range(50):
        await api.get(f"/v1/models/x{i}/y{i}")
    after = (await api.get("/metrics")).text
    assert len(before.splitlines()) == len(after.splitlines())
    assert 'apparate_feedback_batches_total{model="m",namespace="default"} 5.0' in after


async def test_every_json_answer_has_a_schema(api):
    paths = (await api.get("/openapi.json")).json()["paths"]
    for path, methods in paths.items():
        for method, described in methods.items():
            content = described["responses"]["200"]["content"]
            schema = content.get("application/json", {}).get("schema", {})
            told = schema.get("$ref") or schema.get("items", {}).get("$ref")
            assert told or "application/json" not in content, f"{method} {path}"


async def test_feedback_of_another_catalog_is_counted_and_kept_out_of_the_window(api):
    async with contextlib.aclosing(connect(api.url)) as client:
        await client.xadd(feedback_key(MODEL), {FIELD: encode_feedback(replace(a_batch(0), catalog="old"))})

    async def refused():
        return (await api.model())["feedback"]["refused"] == 1

    await eventually_async(refused)
    assert (await api.model())["window"]["records"] == 0


async def test_a_paused_model_keeps_its_plan_tells_what_goes_on_and_a_resumed_one_adapts(api):
    await eventually_async(lambda: api.models.find("default", "m").loop.plan.revision == 1)
    answer = (await api.client.put("/v1/models/default/m/paused", json={"paused": True, "by": "alice"})).json()
    assert (answer["paused"], answer["by"], answer["since"][:2]) == (True, "alice", "20")
    await fed(api, 200)  # 800 records, more than the first tuning needs
    found = await api.model()
    assert (found["paused"], found["pausedBy"], found["pausedSince"]) == (True, "alice", answer["since"])
    assert (found["plan"]["revision"], found["window"]["records"], found["observed"]["samples"]) == (1, 800, 800)
    await eventually_async(lambda: api.models.find("default", "m").loop.observed.samples == 800)
    assert (await api.get("/v1/models")).json()["models"][0]["last"]["samples"] == 800
    shown = (await api.get("/metrics")).text
    assert 'apparate_observed_loss_ratio{model="m",namespace="default"} 0.0' in shown
    assert (await api.client.put("/v1/models/default/m/paused", json={"paused": False})).json()["paused"] is False
    found = await api.model()
    assert (found["paused"], found["pausedSince"], found["pausedBy"]) == (False, "", "")
    said = [(one["reason"], one["by"], one["samples"]) for one in found["decisions"]]
    assert said == [("ResumedByHand", "a client at 127.0.0.1", 800), ("PausedByHand", "alice", 0), ("Started", "", 0)]
    assert 'apparate_decisions_total{model="m",namespace="default",reason="PausedByHand"} 1.0' in shown


async def test_an_earlier_plan_comes_back_under_a_new_revision_and_adaptation_goes_on_from_it(api):
    loop = api.models.find("default", "m").loop
    await eventually_async(lambda: loop.plan.revision == 1)
    by_hand = PlanStatus.of(Plan.of(2, [1], [0.5], CATALOG.digest))
    async with connect(api.url) as client:
        await RedisPlanSink(client, MODEL).publish(by_hand)
    await eventually_async(lambda: loop.plan and loop.plan.revision == 2)
    answer = await api.client.post("/v1/models/default/m/rollback", json={"revision": 1, "by": "alice"})
    assert (answer.json()["revision"], answer.json()["reason"]) == (3, "RolledBackByHand")
    found = await api.model()  # no moment without a plan
    assert (found["plan"]["revision"], found["plan"]["reason"], found["ready"]) == (3, "RolledBackByHand", True)
    assert [one["reason"] for one in found["decisions"]] == ["RolledBackByHand", "PutByHand", "Started"]
    assert found["decisions"][0]["by"] == "alice"
    assert loop.plan.thresholds.tolist() == [0.0] * 3
    plans = (await api.get("/v1/models/default/m/plans")).json()
    assert [plan["revision"] for plan in plans] == [2, 1]


async def test_earlier_plans_are_judged_by_todays_window(api):
    loop = api.models.find("default", "m").loop
    await eventually_async(lambda: loop.plan.revision == 1)
    async with connect(api.url) as client:
        await RedisPlanSink(client, MODEL).publish(PlanStatus.of(Plan.of(2, [1], [0.5], CATALOG.digest)))
    await eventually_async(lambda: loop.plan and loop.plan.revision == 2)
    assert (await api.get("/v1/models/default/m/plans/replayed")).json() == {"plans": []}
    await fed(api, 10, revision=2)
    found = {one["revision"]: one for one in (await api.get("/v1/models/default/m/plans/replayed")).json()["plans"]}
    assert list(found) == [2, 1]
    assert found[1] | {"saving": 0} == {"revision": 1, "records": 40, "loss": 0.0, "saving": 0, "exitRate": 0.0}
    assert found[1]["saving"] < 0 < found[2]["exitRate"]


async def test_plans_of_a_model_that_is_not_ready_cannot_be_judged(api):
    answer = await api.get("/v1/models/default/unprepared/plans/replayed")
    assert (answer.status_code, "not prepared yet" in answer.json()["detail"]) == (503, True)


async def test_a_model_that_is_not_ready_cannot_be_paused(api):
    answer = await api.client.put("/v1/models/default/unprepared/paused", json={"paused": True})
    assert (answer.status_code, "not prepared yet" in answer.json()["detail"]) == (503, True)


@pytest.mark.parametrize("path", ["m", "unprepared"])
async def test_a_plan_that_cannot_be_had_again_is_told(api, path):
    answer = await api.client.post(f"/v1/models/default/{path}/rollback", json={"revision": 77})
    wanted = (409, "revision 77 is not in the history") if path == "m" else (503, "not ready")
    assert answer.status_code == wanted[0] and wanted[1] in answer.json()["detail"]


async def test_a_client_that_asks_for_another_protocol_is_answered_and_fills_no_log(caplog):
    app = create_app(Models([], lambda *_: None, 1.0), Telemetry(CONTROLLER), stuck_s=60)
    async with served(app) as url, httpx.AsyncClient(base_url=url) as client:
        found = await client.get("/healthz", headers={"connection": "Upgrade", "upgrade": "websocket"})
    assert found.status_code == 200
    assert [one.getMessage() for one in caplog.records if one.name.startswith("uvicorn") and one.levelno > 20] == []


@pytest.mark.parametrize("standby", ["", "standby: x leads"])
async def test_what_kubernetes_refuses_makes_leader_and_standby_unready(standby):
    refused = {"patch earlyexitmodels/status in namespace shop": "a right is missing"}
    models = Models([], lambda *_: None, 1.0)
    told = {"standby": lambda: standby, "refused": lambda: dict(refused)}
    app = create_app(models, Telemetry(CONTROLLER), stuck_s=60, **told)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://controller") as client:
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()["problems"].items() >= refused.items()) == (503, True)
        assert (await client.get("/healthz")).status_code == 200
        refused.clear()
        assert (await client.get("/readyz")).status_code == 200


async def commanded(api, *argv: str) -> int:
    """The status of `apparate ...` against this controller."""
    async with served(api.app) as url:
        return await asyncio.to_thread(run, [*argv, "--url", url])


async def test_the_commands_show_decisions_and_other_budgets(api, capsys):
    await fed(api, 10)
    assert await commanded(api, "history", "m") == 0
    assert await commanded(api, "what-if", "m", "--budget", "0.01", "--budget", "0.2") == 0
    shown = capsys.readouterr().out
    wanted = ("Started", "decisions, newest first", "tuned on 40 records", "none: too few records", "plan in force")
    assert [text for text in (*wanted, "0.01 (the model's)", "at most: upper bound") if text not in shown] == []
    assert await commanded(api, "what-if", "m", "-o", "yaml") == 0
    answers = yaml.safe_load(capsys.readouterr().out)["answers"]
    assert [one["accuracyLoss"] for one in answers if one["inForce"]] == [0.01]
    assert len(answers) == 5


async def test_what_if_answers_for_the_models_own_budget_too(api, capsys):
    await fed(api, 10)
    assert await commanded(api, "what-if", "m", "--budget", "0.2", "-o", "json") == 0
    answers = json.loads(capsys.readouterr().out)["answers"]
    assert [(one["accuracyLoss"], one["inForce"]) for one in answers] == [(0.01, True), (0.2, False)]


async def test_what_was_asked_for_is_in_the_history_and_the_status_of_the_commands(api, capsys):
    await eventually_async(lambda: api.models.find("default", "m").loop.plan.revision == 1)
    assert await commanded(api, "pause", "m") == 0
    assert "default/m is paused at plan revision 1" in capsys.readouterr().out
    assert await commanded(api, "status") == 0
    assert "default/m: paused since 20" in capsys.readouterr().out
    assert await commanded(api, "history", "m", "-o", "json") == 0
    history = json.loads(capsys.readouterr().out)
    assert [(one["reason"], one["by"]) for one in history] == [("PausedByHand", asker()), ("Started", "")]


async def test_the_command_saves_a_recording_and_writes_over_nothing(api, tmp_path, capsys):
    await fed(api, 10)
    path = tmp_path / "window.npz"
    assert await commanded(api, "record", "m", str(path)) == 0
    assert len(read_recording(path)) == 40
    assert await commanded(api, "record", "m", str(path)) == 2
    assert "--force writes over it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("what-if", "m", "--budget", "0"), "--budget is 0.0, must be above 0"),
        (("what-if", "m", *(f"--budget={n / 100}" for n in range(1, 18))), "17 budgets are asked for, at most 16"),
        (("what-if", "m", "--confidence", "1"), "must be between 0 and 1"),
        (("record", "m", "window.csv"), "must end in .npz"),
        (("history", "nobody"), "there is no model nobody"),
    ],
)
async def test_the_commands_refuse_what_cannot_be(api, argv, words, capsys):
    assert await commanded(api, *argv) == 2
    assert words in capsys.readouterr().err


TOKEN = "p:a$s=w!rd"


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/models", {}, 401),
        ("/", {}, 401),
        ("/web/app.js", {}, 401),
        ("/v1/models", {"authorization": "Bearer other"}, 401),
        ("/v1/models", {"authorization": "Basic !"}, 401),
        ("/v1/models", {"authorization": f"Bearer {TOKEN}".encode()}, 200),
        ("/v1/models", {"authorization": "Basic " + base64.b64encode(f"me:{TOKEN}".encode()).decode()}, 200),
        ("/v1/models", {"apparate-token": TOKEN.encode()}, 200),
        ("/healthz", {}, 200),
        ("/metrics", {}, 200),
    ],
)
async def test_with_a_token_everything_but_probes_and_metrics_wants_it(path, headers, status):
    app = create_app(Models([], lambda *_: None, 1.0), Telemetry(CONTROLLER), stuck_s=60)
    app.add_middleware(Entry, token=TOKEN)
    async with served(app) as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.get(path, headers=headers)).status_code == status


async def test_the_commands_show_the_token_of_the_shell(api, monkeypatch, capsys):
    api.app.add_middleware(Entry, token="secret")
    assert await commanded(api, "status") == 2
    assert "APPARATE_CONTROLLER_TOKEN" in capsys.readouterr().err
    monkeypatch.setenv("APPARATE_CONTROLLER_TOKEN", "secret")
    assert await commanded(api, "status") == 0
