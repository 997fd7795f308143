"""A watch goes on through everything that ends one."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from apparate.service import watch
from apparate.service.kube import CONNECT_TIMEOUT_S, models_path
from apparate.service.watch import Changed, Listed, Watch
from support.eventually import eventually_async
from support.objects import Objects, a_client
from support.tcp_proxy import TcpProxy

pytestmark = pytest.mark.cluster


@pytest.fixture
def objects(control_plane, namespace, crd):
    return Objects(control_plane, namespace)


@contextlib.asynccontextmanager
async def watching(objects, *, server="", **options):
    """What the watch tells, as (kind, names)."""
    kubeconfig = objects.cluster.kubeconfig_at(server) if server else None
    client = a_client(objects.cluster, kubeconfig)
    seen = []

    async def follow():
        async for event in Watch(client, models_path(objects.namespace), **options).events():
            if isinstance(event, Listed):
                seen.append(("LISTED", [thing["metadata"]["name"] for thing in event.objects]))
            elif isinstance(event, Changed):
                seen.append((event.kind, [event.object["metadata"]["name"]]))

    task = asyncio.create_task(follow())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        client.close()


async def test_first_all_objects_come_then_each_change(objects):
    objects.create("a")
    async with watching(objects) as seen:
        await eventually_async(lambda: seen == [("LISTED", ["a"])])
        objects.create("b")
        objects.change({"serving": {"replicas": 2}}, "a")
        objects.delete("b")
        await eventually_async(
            lambda: seen[1:] == [("ADDED", ["b"]), ("MODIFIED", ["a"]), ("DELETED", ["b"])], within=10
        )


async def test_one_object_is_followed_by_its_name(objects):
    objects.create("a")
    objects.create("b")
    async with watching(objects, name="a") as seen:
        await eventually_async(lambda: seen == [("ADDED", ["a"])])
        objects.change({"serving": {"replicas": 2}}, "b")
        objects.change({"serving": {"replicas": 2}}, "a")
        await eventually_async(lambda: seen[1:] == [("MODIFIED", ["a"])])


async def test_an_object_that_comes_later_is_followed_too(objects):
    async with watching(objects, name="a") as seen:
        await asyncio.sleep(0.3)
        objects.create("a")
        await eventually_async(lambda: seen == [("ADDED", ["a"])])


async def test_the_end_of_a_watch_loses_nothing_and_repeats_nothing(objects):
    objects.create("a")
    async with watching(objects, watch_s=1.0) as seen:
        await eventually_async(lambda: seen)
        for replicas in range(2, 8):
            objects.change({"serving": {"replicas": replicas}}, "a")
            await asyncio.sleep(0.5)
        await eventually_async(lambda: len(seen) == 7)
    assert seen == [("LISTED", ["a"]), *[("MODIFIED", ["a"])] * 6]


async def test_a_version_that_is_too_old_is_listed_anew(objects, monkeypatch):
    objects.create("a")
    attempt, told = Watch._attempt, []

    def outdated(self):
        if self._version and not told:
            told.append(1)
            self._version = "1"
        return attempt(self)

    monkeypatch.setattr(Watch, "_attempt", outdated)
    async with watching(objects, watch_s=1.0) as seen:
        objects.create("b")
        await eventually_async(lambda: told and seen[-1] == ("LISTED", ["a", "b"]), within=15)


async def test_a_black_holed_connection_is_left_within_its_time(objects):
    objects.create("a")
    async with TcpProxy(int(objects.cluster.url.rpartition(":")[2])) as proxy:
        server = f"https://127.0.0.1:{proxy.port}"
        async with watching(objects, server=server, watch_s=2.0) as seen:
            await eventually_async(lambda: seen)
            proxy.swallow()
            objects.create("b")
            await asyncio.sleep(1.0)
            assert len(seen) == 1
            proxy.heal()
            await eventually_async(lambda: any("b" in names for _, names in seen), within=30)


def test_with_the_times_that_ship_a_black_hole_is_left_well_within_two_minutes():
    assert watch.WATCH_S + watch.MARGIN_S + watch.BACKOFF_S[1] + CONNECT_TIMEOUT_S < 90


async def test_an_api_server_that_comes_late_is_waited_for(objects):
    objects.create("a")
    proxy = TcpProxy(9)  # nobody listens there
    async with proxy, watching(objects, server=f"https://127.0.0.1:{proxy.port}") as seen:
        await asyncio.sleep(0.5)
        proxy.target = int(objects.cluster.url.rpartition(":")[2])
        await eventually_async(lambda: seen == [("LISTED", ["a"])], within=15)
