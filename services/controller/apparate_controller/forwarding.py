"""A standby passes questions about models on to the leader: behind one Service it does not matter who is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import urllib3
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from apparate_controller.entry import OWN_HEADER

ABOUT_MODELS = "/v1/"
PASSED_ON = "apparate-passed-on"
"""Header of a question that was passed on: who does not lead either answers it itself, so nothing goes in circles."""
CONNECT_S, ANSWER_S = 2.0, 10.0
KEPT = ("content-type", "content-disposition")

Answer = tuple[int, bytes, dict[str, str]]


def pass_on_to_leader(app: FastAPI, standby: Callable[[], str], leader: Callable[[], str], *, token: str = "") -> None:
    """Have `app` ask the leader while `standby` says that another process leads.

    leader: its host:port, empty when that is not known; then the standby answers that it is one. token: what the
    leader wants, which whoever asks has shown already.
    """
    timeout = urllib3.Timeout(connect=CONNECT_S, read=ANSWER_S)
    own = {OWN_HEADER: token} if token else {}
    pool = urllib3.PoolManager(timeout=timeout, retries=False)

    def ask(url: str) -> Answer:
        answer = pool.request("GET", url, headers={PASSED_ON: "1"} | own, redirect=False)
        return answer.status, answer.data, {name: answer.headers[name] for name in KEPT if name in answer.headers}

    @app.middleware("http")
    async def passed_on(request: Request, here: Callable[[Request], Awaitable[Response]]) -> Response:
        told, where, path = standby(), leader(), request.scope["raw_path"].decode("ascii")
        about_models = request.method == "GET" and path.startswith(ABOUT_MODELS)
        if not (told and where and about_models) or PASSED_ON in request.headers:
            return await here(request)
        query = f"?{request.url.query}" if request.url.query else ""
        try:
            status, body, headers = await asyncio.to_thread(ask, f"http://{where}{path}{query}")
        except urllib3.exceptions.HTTPError:
            return JSONResponse({"detail": f"{told}, and does not answer at {where}"}, 503)
        return Response(body, status, headers)
