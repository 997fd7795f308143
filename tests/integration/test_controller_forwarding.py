"""What a standby does with questions about models, over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
from fastapi import FastAPI, Request, Response

from apparate_controller.entry import Entry
from apparate_controller.forwarding import PASSED_ON, pass_on_to_leader
from apparate_controller.server import bind, http_server


def an_app(name: str, standby: str = "", leader: str = "") -> FastAPI:
    """A controller that says who answers, and what it was asked."""
    app = FastAPI()

    @app.get("/{path:path}")
    async def answer(request: Request) -> Response:
        asked = f"{request.scope['raw_path'].decode()}?{request.url.query}"
        headers = {"content-disposition": "attachment", "x-own": "1"}
        return Response(f"{name} {asked}", 404 if "none" in asked else 200, headers)

    pass_on_to_leader(app, lambda: standby, lambda: leader)
    return app


@contextlib.asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """host:port of an app."""
    server = http_server(app)
    with contextlib.closing(bind("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        await serving


def asking(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://standby")


async def test_questions_about_models_are_passed_on_as_they_are_and_others_are_not():
    async with served(an_app("leader")) as where, asking(an_app("standby", "standby: x leads", where)) as http:
        answer = await http.get("/v1/models/a%2Fb/recording?ramps=all")
        assert answer.text == "leader /v1/models/a%2Fb/recording?ramps=all"
        assert answer.headers["content-disposition"] == "attachment"
        assert "x-own" not in answer.headers
        assert (await http.get("/v1/none")).status_code == 404
        assert (await http.get("/healthz")).text.startswith("standby")


async def test_the_leaders_token_goes_with_what_is_passed_on():
    guarded = an_app("leader")
    guarded.add_middleware(Entry, token="secret")
    standby = an_app("standby")
    async with served(guarded) as where:
        pass_on_to_leader(standby, lambda: "standby: x leads", lambda: where, token="secret")
        async with asking(standby) as http:
            assert (await http.get("/v1/models")).text.startswith("leader")


async def test_what_was_passed_on_is_not_passed_on_again():
    async with asking(an_app("standby", "standby: x leads", "127.0.0.1:1")) as http:
        assert (await http.get("/v1/models", headers={PASSED_ON: "1"})).text.startswith("standby")


async def test_a_leader_that_does_not_answer_is_told_with_its_address():
    async with asking(an_app("standby", "standby: x leads", "127.0.0.1:1")) as http:
        answer = await http.get("/v1/models")
    assert answer.status_code == 503
    assert answer.json() == {"detail": "standby: x leads, and does not answer at 127.0.0.1:1"}


async def test_who_leads_or_knows_no_leader_answers_itself():
    for app in (an_app("leading", "", "127.0.0.1:1"), an_app("alone", "standby: nobody is known to lead")):
        async with asking(app) as http:
            assert (await http.get("/v1/models")).status_code == 200
