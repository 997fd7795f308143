"""`apparate doctor`: the usual faults of an installation, each with what to do about it."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata, util
from typing import Annotated

import typer

from apparate.cli.doctor_cluster import of_the_cluster
from apparate.cli.doctor_models import locally, of_model
from apparate.cli.errors import FAILED, CommandError
from apparate.cli.findings import FAIL, OK, SKEW_S, WARN, Found, of_readiness, runbook
from apparate.cli.output import Format, Output, show
from apparate.cli.places import in_cluster
from apparate.cli.progress import working
from apparate.cli.status import troubles, why
from apparate.cli.tables import table
from apparate.cli.target import DEFAULT_URL, Context, Json, Kubeconfig, Namespace, Url, key_of
from apparate.cli.target_local import NO_CONTROLLER, LocalTarget
from apparate.contract.stream import HEARTBEAT_INTERVAL_S

TIMEOUT_S = 5.0
SETTLE_S = 2 * HEARTBEAT_INTERVAL_S + 1.0  # a heartbeat may be missed; the controller looks for them every second
LOOK_AGAIN_S = 0.25


def doctor_command(
    ctx: typer.Context,
    url: Url = "",
    redis_url: Annotated[
        str, typer.Option(help="Redis that local mode or the chart is given, to be looked at too.")
    ] = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    output: Output = Format.TABLE,
) -> None:
    """Look for the usual faults: of this machine and local mode, or of a cluster. Changes nothing."""
    with working("looking"):
        if in_cluster(ctx, namespace, context, kubeconfig):
            found = list(of_the_cluster(namespace, context, kubeconfig))
        else:
            found = [*of_this_machine(), *of_the_controller(url or DEFAULT_URL)]
        if redis_url:
            found += asyncio.run(of_redis(redis_url))
    rows = [(one.verdict, one.check, one.told, one.next) for one in found]
    show([asdict(one) for one in found], output, lambda: table("", ("", "check", "found", "next"), rows))
    if failed := sum(one.verdict == FAIL for one in found):
        raise CommandError(f"{failed} of {len(found)} checks failed", FAILED)


def of_this_machine() -> Iterator[Found]:
    """Python, the extras that are installed, and a redis-server."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Found("python", OK, f"{version}, apparate {metadata.version('apparate')}")
    extras = {"worker": "torch", "controller": "fastapi", "kubectl": "kubernetes"}
    lacking = [extra for extra, package in extras.items() if util.find_spec(package) is None]
    if lacking:
        yield Found("packages", WARN, f"without: {', '.join(lacking)}", f"pip install 'apparate[{','.join(lacking)}]'")
    else:
        yield Found("packages", OK, "worker, controller and kubectl parts are installed")
    from apparate.service.redis_server import find

    try:
        yield Found("redis-server", OK, str(find()))
    except (OSError, RuntimeError, ValueError) as error:
        yield Found("redis-server", WARN, str(error), "install one, or give `apparate serve` a --redis-url")


def of_the_controller(url: str) -> Iterator[Found]:
    """A controller that answers, what it says of itself, and its clock."""
    try:
        began = time.time()
        with urllib.request.urlopen(f"{url.rstrip('/')}/readyz", timeout=TIMEOUT_S) as response:
            body, told = json.load(response), response.headers.get("date", "")
        yield from of_clock("controller", told, began, time.time())
    except urllib.error.HTTPError as error:
        with error:
            body = _json(error.read())
        if "problems" not in body:
            yield Found("controller", FAIL, f"{url} answers {error.code} and is {NO_CONTROLLER}")
            return
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        yield Found(
            "controller", WARN, f"none at {url}: {reason}", "start `apparate serve -f model.yaml`, or say --url"
        )
        return
    yield from of_readiness(body)
    yield from of_models(url)


def of_models(url: str) -> Iterator[Found]:
    """Whether each model has live workers that run its plan, and what it does for its budget."""
    try:
        models = _settled(LocalTarget(url))
    except CommandError as error:
        yield Found("models", WARN, str(error))
        return
    for one in models:
        name, (workers, on_it) = f"model {key_of(one)}", _delivery(one)
        wrong = list(troubles(one))
        if not one.get("ready", True):
            yield Found(name, FAIL, f"not adapted: {one.get('reason', '')}", "look at the log of `apparate serve`")
        elif not workers:
            told = f"no live worker for {SETTLE_S:g} s"
            yield Found(name, FAIL, told, "look at the log of `apparate serve`")
        elif wrong:
            yield Found(name, FAIL, "; ".join(wrong), "restart its workers")
        elif on_it < workers:
            told = f"{on_it} of {workers} workers run the plan in force"
            yield Found(name, WARN, told, runbook("ApparatePlanNotDelivered"))
        else:
            well = f"{workers} workers on plan revision {one['plan']['revision']}; {why(one)}"
            yield of_model(one, well, locally(url))


def _settled(target: LocalTarget) -> list[Json]:
    """All models, as soon as workers that have just started are heard of and a new plan has reached them all."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        models = target.views()
        if time.monotonic() > deadline or not any(map(_on_the_way, models)):
            return models
        time.sleep(LOOK_AGAIN_S)


def _on_the_way(one: Json) -> bool:
    """Whether another look in a moment may find what this one lacks."""
    workers, on_it = _delivery(one)
    return one.get("ready", True) and (not workers or on_it < workers) and not any(troubles(one))


def _delivery(one: Json) -> tuple[int, int]:
    """Live workers, and those of them that run the plan in force."""
    told = one.get("delivery") or {}
    return told.get("workers", 0), told.get("updatedWorkers", 0)


def of_clock(where: str, date: str, began: float, ended: float) -> Iterator[Found]:
    """How far a clock is off, by the Date of an answer to a request between two times of ours."""
    from email.utils import parsedate_to_datetime

    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return
    off = max(theirs - ended, began - theirs - 1.0, 0.0)  # Date has whole seconds
    if off > SKEW_S:
        yield Found(f"clock of the {where}", WARN, f"{off:.0f} s off this machine's", "let NTP set both clocks")
    else:
        yield Found(f"clock of the {where}", OK, "agrees with this machine's")


async def of_redis(url: str) -> list[Found]:
    """Whether Redis answers, keeps what it is given, has room, and the right time."""
    from apparate.service.redis_client import UNREACHABLE, close, connect, failing

    try:
        client = connect(url)
    except ValueError as error:
        return [Found("redis", FAIL, str(error), "redis://[user:password@]host:port/db")]
    found: list[Found] = []
    try:
        began = time.time()
        seconds, micros = await client.time()
        off = max(seconds + micros / 1e6 - time.time(), began - seconds - micros / 1e6, 0.0)
        skewed = off > SKEW_S
        clock = f"{off:.1f} s off this machine's" if skewed else "agrees with this machine's"
        found.append(
            Found("clock of redis", WARN if skewed else OK, clock, "let NTP set both clocks" if skewed else "")
        )
        info: Json = await client.info()
        policy = str(info.get("maxmemory_policy", "noeviction"))
        evicts = policy != "noeviction"
        step = "set maxmemory-policy noeviction: others may throw streams and their groups away" if evicts else ""
        found.append(Found("redis policy", FAIL if evicts else OK, f"maxmemory-policy is {policy}", step))
        used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
        full = bool(limit) and used > 0.8 * limit
        room = f"{used / 2**20:.0f} MiB of {f'{limit / 2**20:.0f} MiB' if limit else 'no limit'}"
        found.append(Found("redis memory", WARN if full else OK, room, "give Redis more memory" if full else ""))
        if info.get("role") != "master":
            found.append(Found("redis role", FAIL, "this is a replica", "the URL must name the primary"))
    except UNREACHABLE as error:
        found.append(Found("redis", FAIL, failing(error).words))
    finally:
        await close(client)
    return found


def _json(text: bytes) -> Json:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
