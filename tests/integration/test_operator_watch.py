"""The operator's watches against an API server that says what real ones say only after minutes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import kopf
import pytest
import yaml
from aiohttp import web

from apparate_operator import handlers
from apparate_operator.kinds import MODEL, WATCHED, Kind
from apparate_operator.settings import OperatorSettings
from support.eventually import eventually_async
from support.models_on_kubernetes import a_body

SERVED = (
    *WATCHED,
    Kind("v1", "Namespace", "namespaces"),
    Kind("v1", "Event", "events"),
    Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions"),
)
GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}


def an_object(name: str, version: int) -> dict[str, Any]:
    body = a_body(name)
    body["metadata"] |= {"uid": f"uid-{name}", "resourceVersion": str(version), "generation": 1}
    return body


class Api:
    """Serves the kinds that the operator watches; models as `lists` say, one list after the other."""

    def __init__(self, lists: list[list[dict[str, Any]]], says: list[dict[str, Any]]) -> None:
        self.lists, self.says, self.listed = lists, says, 0
        self.refusals = 0
        """So many requests for models are yet to be refused, as by an API server that is only starting."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        if request.path in ("/api", "/apis"):
            groups = {kind.group: kind.api.rpartition("/")[2] for kind in SERVED if kind.group}
            told = [
                {"name": g, "preferredVersion": {"version": v}, "versions": [{"version": v}]} for g, v in groups.items()
            ]
            return web.json_response({"versions": ["v1"]} if request.path == "/api" else {"groups": told})
        kind = next((one for one in SERVED if request.path == one.path()), None)
        if kind is None:
            return web.json_response(
                {"resources": [_resource(one) for one in SERVED if one.api == "/".join(parts[1:])]}
            )
        if kind is MODEL and self.refusals:
            self.refusals -= 1
            return web.json_response({"kind": "Status", "code": 503, "message": "not all paths yet"}, status=503)
        if "watch" in request.query:
            return await self._watch(request, kind)
        items = self.lists[min(self.listed, len(self.lists) - 1)] if kind is MODEL else []
        self.listed += kind is MODEL
        return web.json_response({"metadata": {"resourceVersion": str(10 * self.listed)}, "items": items})

    async def _watch(self, request: web.Request, kind: Kind) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        if kind is MODEL and self.says:
            said, self.says = self.says, []
            await response.write("".join(f"{json.dumps(one)}\n" for one in said).encode())
            return response
        with contextlib.suppress(ConnectionError):
            await asyncio.sleep(60)
        return response


def _resource(kind: Kind) -> dict[str, Any]:
    verbs = ["get", "list", "watch", "patch"]
    return {
        "name": kind.plural,
        "singularName": kind.name.lower(),
        "kind": kind.name,
        "namespaced": True,
        "verbs": verbs,
    }


class Heard:
    """In the place of the operator: what its handlers heard of models."""

    def __init__(self, settings: OperatorSettings) -> None:
        self.settings = settings
        self.all: list[tuple[str, str]] = []

    def heard(self, kind: Kind, event: str, body: Any) -> None:
        if kind is MODEL:
            self.all.append((event, str(body["metadata"]["name"])))

    async def stop(self) -> None:
        """Nothing is under way."""


@contextlib.asynccontextmanager
async def watching(api: Api, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Heard]:
    """What is heard from an API, by the operator's own handlers and settings."""
    app = web.Application()
    app.router.add_get("/{path:.*}", api.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    kubeconfig = folder / "kubeconfig"
    place = {"clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}]}
    who = {"users": [{"name": "u", "user": {"token": "t"}}], "current-context": "x"}
    kubeconfig.write_text(
        yaml.safe_dump({**place, **who, "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]})
    )
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    settings = OperatorSettings.load({"EEM_OPERATOR_WORKER_IMAGE": "w", "EEM_OPERATOR_KUBECONFIG": str(kubeconfig)})
    heard, stop = Heard(settings), asyncio.Event()
    running = asyncio.create_task(
        kopf.operator(
            registry=kopf.get_default_registry(),
            settings=handlers.kopf_settings(settings),
            memo=kopf.Memo(operator=heard),
            standalone=True,
            clusterwide=True,
            stop_flag=stop,
        )
    )
    try:
        yield heard
        assert not running.done()
    finally:
        stop.set()
        _, hanging = await asyncio.wait({running}, timeout=20)
        await runner.cleanup()
        assert not hanging


async def test_a_version_that_is_too_old_is_listed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    api = Api([[an_object("first", 5)], [an_object("second", 15)]], says=[GONE])
    async with watching(api, tmp_path, monkeypatch) as heard:
        await eventually_async(lambda: ("LISTED", "second") in heard.all, within=20)
        assert api.listed == 2


async def test_old_words_that_come_again_are_heard_as_words_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    again = [{"type": "ADDED", "object": an_object("dead", 2)}, {"type": "DELETED", "object": an_object("dead", 3)}]
    api = Api([[an_object("first", 5)]], says=[*again, GONE])
    async with watching(api, tmp_path, monkeypatch) as heard:
        await eventually_async(lambda: api.listed == 2 and ("DELETED", "dead") in heard.all, within=20)


async def test_an_api_server_that_refuses_for_long_ends_no_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(handlers, "PAUSES_S", (0.05,))
    api = Api([[an_object("first", 5)], [an_object("second", 15)]], says=[GONE])
    api.refusals = 20
    async with watching(api, tmp_path, monkeypatch) as heard:
        await eventually_async(lambda: ("LISTED", "second") in heard.all, within=30)
        assert api.refusals == 0
