"""Whether the operator hears and works: /healthz, /readyz, /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from apparate.service.telemetry import METRICS_CONTENT_TYPE
from apparate_operator.kinds import WATCHED, Kind

MISSES = 2  # lists in a row that found a watch to have missed changes, before it is taken for dead


class Health:
    """What is wrong, in sentences; all is well without any."""

    def __init__(self) -> None:
        self.starting: list[str] = ["the operator is starting"]
        """What the start waits for."""
        self.outdated = ""
        """What is wrong with the installed CustomResourceDefinition. A restart would not mend it."""
        self._missed: dict[Kind, int] = {}

    def watched(self, kind: Kind, *, missed: int) -> None:
        """A list was compared with what a watch had told."""
        self._missed[kind] = self._missed.get(kind, 0) + 1 if missed else 0

    def problems(self) -> list[str]:
        """What is wrong now. For the event loop of the operator."""
        if self.starting:
            return list(self.starting)
        alive = [task.get_name() for task in asyncio.all_tasks() if not task.done()]
        dead = [kind for kind in WATCHED if not any(_is_watcher(name, kind) for name in alive)]
        found = [f"the watch of {kind.plural} has ended" for kind in dead]
        return found + [f"the watch of {kind.plural} misses changes" for kind, n in self._missed.items() if n >= MISSES]


def _is_watcher(task: str, kind: Kind) -> bool:
    """kopf names the task of each watch after what it watches: `watcher for jobs.v1.batch@None`."""
    return task.startswith(f"watcher for {kind.plural}.")


async def serve(health: Health, render: Callable[[], bytes], host: str, port: int) -> tuple[web.AppRunner, int]:
    """Start the server; the runner to clean up, and the port. Raises OSError when the address cannot be had."""

    async def healthz(_: web.Request) -> web.Response:
        problems = health.problems()
        return web.json_response({"problems": problems}, status=503 if problems else 200)

    async def readyz(_: web.Request) -> web.Response:
        problems = health.problems() + list(filter(None, [health.outdated]))
        return web.json_response({"problems": problems}, status=503 if problems else 200)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=render(), headers={"Content-Type": METRICS_CONTENT_TYPE})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError:
        await runner.cleanup()
        raise
    return runner, int(runner.addresses[0][1])
