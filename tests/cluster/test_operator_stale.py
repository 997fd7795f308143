"""Old news: what the operator remembers of a model may be of one that is deleted, or of its predecessor."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from apparate.service.kube import from_kubeconfig
from apparate_operator.cluster import Cluster
from apparate_operator.kinds import MODEL
from apparate_operator.reconciler import Reconciler
from apparate_operator.store import Store
from support import kube
from support.models_on_kubernetes import ENVIRONMENT, a_body
from support.operator import Hand

pytestmark = pytest.mark.cluster


@pytest.fixture
def hand(control_plane: kube.Cluster, namespace: str, crd: Any) -> Hand:
    return Hand(control_plane, namespace)


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
