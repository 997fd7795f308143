"""Old news and none: what is remembered of a model may be of a deleted one, or nobody told of a new one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from apparate.contract.metrics import OPERATOR
from apparate.service.kube import from_kubeconfig
from apparate.service.telemetry import Telemetry
from apparate_operator.cluster import Cluster
from apparate_operator.health import Health
from apparate_operator.kinds import MODEL
from apparate_operator.operator import Operator
from apparate_operator.reconciler import Reconciler
from apparate_operator.settings import OperatorSettings
from apparate_operator.store import Store
from support.models_on_kubernetes import ENVIRONMENT, a_body
from support.operator import Hand

pytestmark = pytest.mark.cluster


class Looking:
    """The operator's look at models, without watches: only what a test tells it is known."""

    def __init__(self, hand: Hand, threads: ThreadPoolExecutor) -> None:
        self.client = from_kubeconfig(str(hand.cluster.kubeconfig))[0]
        self.key, self.store, self.writes = (hand.namespace, "resnet"), Store(), list[tuple[str, str]]()
        cluster = Cluster(self.client, (hand.namespace,), threads, lambda *write: self.writes.append(write))
        self.reconciler = Reconciler(self.store, cluster, lambda: True)
        self.reconciler.environment = ENVIRONMENT

    async def look(self) -> float | None:
        return await self.reconciler.reconcile(self.key)


@pytest.fixture
def looking(hand: Hand) -> Iterator[Looking]:
    with ThreadPoolExecutor(2) as threads:
        made = Looking(hand, threads)
        with contextlib.closing(made.client):
            yield made


async def test_late_news_of_a_deleted_model_makes_nothing(hand: Hand, looking: Looking):
    hand.create(a_body())
    dead = hand.get()
    hand.delete()
    looking.store.put(MODEL, dead)
    assert await looking.look() == 0.0  # look again, at what is there now
    assert await looking.look() is None
    assert looking.writes == []
    assert hand.leftovers() == []


async def test_late_news_of_a_predecessor_makes_nothing_for_it(hand: Hand, looking: Looking):
    hand.create(a_body())
    dead = hand.get()
    hand.delete()
    hand.create(a_body())
    looking.store.put(MODEL, dead)
    assert await looking.look() == 0.0
    await looking.look()
    owners = [job.metadata.owner_references[0].uid for job in hand.jobs()]
    assert owners == [hand.get()["metadata"]["uid"]]
    assert owners != [dead["metadata"]["uid"]]


async def test_what_no_watch_told_is_made_up_for_by_the_next_list_and_a_deaf_watch_is_told(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("apparate_operator.operator.CATCH_UP_S", 0.1)
    given = {"worker_image": "w", "namespaces": hand.namespace, "lease_namespace": hand.namespace}
    settings = OperatorSettings.load({f"EEM_OPERATOR_{name.upper()}": value for name, value in given.items()})
    client, health = from_kubeconfig(str(hand.cluster.kubeconfig))[0], Health()
    health.starting = []
    deaf = "the watch of earlyexitmodels misses changes"
    with contextlib.closing(client), contextlib.closing(Operator(settings, client, Telemetry(OPERATOR), health)) as one:
        for n in range(2):
            assert deaf not in health.problems()
            hand.create(a_body(f"model{n}"))
            await one.resync()
            assert await asyncio.wait_for(one.queue.get(), 1) == (hand.namespace, f"model{n}")
            one.queue.done((hand.namespace, f"model{n}"))
        assert deaf in health.problems()
        await one.resync()
        assert deaf not in health.problems()
