"""The operator put together: watches fill the store, the leader's workers go through the queue, lists check it all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from logging import ERROR, INFO
from typing import Any

from apparate.contract.definition import lacking, outdated
from apparate.service.kube import FORBIDDEN, NOT_FOUND, UNAUTHORIZED, KubeClient, KubeError
from apparate.service.lease import DURATION_S, GIVE_UP_S, RENEW_S, Leadership
from apparate.service.telemetry import Telemetry, get_logger
from apparate.service.tracing import Tracing
from apparate_operator.cluster import Cluster
from apparate_operator.health import Health
from apparate_operator.kinds import CHILDREN, MODEL, SECRET, WATCHED, Kind
from apparate_operator.manifests.common import Environment
from apparate_operator.memory import give_back
from apparate_operator.observe import ModelMetrics, count_errors
from apparate_operator.queue import WorkQueue
from apparate_operator.reconciler import NotLeading, Reconciler
from apparate_operator.settings import OperatorSettings
from apparate_operator.store import Key, Store
from apparate_operator.traces import ReconcileTraces

THREADS = 8  # calls at a time; more would only wait in the API server's own queues
CATCH_UP_S = 5.0  # a watch is late by this much at most, else it has missed something
DEFINITION_S = 60.0  # between two looks at the CustomResourceDefinition, or as often as everything is listed
RIGHTS_S = 30.0  # between two times that it is seen whether reading is still allowed
LAG_S = 1.0  # between two looks at how late the event loop is
TRIM_S = 15.0  # between two times that freed memory is given back, while there is nothing to do
log = get_logger(__name__)


class Operator:
    """One replica."""

    def __init__(
        self,
        settings: OperatorSettings,
        client: KubeClient,
        telemetry: Telemetry,
        health: Health,
        tracing: Tracing | None = None,
    ) -> None:
        self.settings, self.health, self._telemetry = settings, health, telemetry
        self._traces = ReconcileTraces(tracing)
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kubernetes")
        self.cluster = Cluster(client, settings.namespaces, self.threads, self._wrote)
        self.store = Store()
        self.queue = WorkQueue()
        self.reconciler = Reconciler(self.store, self.cluster, self.leads)
        self.leadership = Leadership(
            client,
            settings.lease_namespace,
            settings.lease_name,
            settings.name,
            threads=self.threads,
            duration_s=settings.lease_seconds,
            renew_s=settings.lease_seconds * RENEW_S / DURATION_S,
            give_up_s=settings.lease_seconds * GIVE_UP_S / DURATION_S,
        )
        self._shown = ModelMetrics(telemetry)
        telemetry("apparate_operator_resync_interval_seconds").set(settings.resync_seconds)
        client.observe = count_errors(telemetry)
        self._leads_since: float | None = None
        self._running: asyncio.Task[None] | None = None

    def leads(self) -> bool:
        """Whether this replica may write."""
        return self._leads_since is not None

    def heard(self, kind: Kind, event: str, body: Mapping[str, Any]) -> None:
        """Something changed: remember it, and look at the model it belongs to."""
        self._telemetry("apparate_operator_last_event_timestamp_seconds", kind=kind.name).set(time.time())
        if event == "DELETED":
            key = self.store.drop(kind, body)
            if kind is MODEL:
                self.reconciler.forget(str(body["metadata"]["uid"]))
                self._shown.forget((body["metadata"]["namespace"], body["metadata"]["name"]))
        else:
            key = self.store.put(kind, body)
        if key is not None and self.leads():
            self.queue.add(key)

    async def stop(self) -> None:
        """End `run`, and with it the lead."""
        if self._running is not None and not self._running.done():
            self._running.cancel()
            await asyncio.wait({self._running})

    async def run(self) -> None:
        """Lead whenever the Lease can be had, until cancelled."""
        self._running = asyncio.current_task()
        beside = [asyncio.create_task(self._watch_lag(), name="lag")]
        beside += [asyncio.create_task(self._watch_definition(), name="definition")]
        try:
            while True:
                await self.leadership.acquire()
                leading = asyncio.create_task(self._lead(), name="leading")
                held = asyncio.create_task(self.leadership.hold(), name="lease")
                try:
                    await asyncio.wait({leading, held}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    self._leads_since = None
                    for task in (leading, held):
                        task.cancel()
                    results = await asyncio.gather(leading, held, return_exceptions=True)
                    self.queue.clear()
                    self._shown.forget_all()
                    self._telemetry("apparate_operator_leading").set(0)
                    await self.leadership.release()
                if isinstance(results[0], Exception):
                    log.error("leading failed", error=repr(results[0]), exc_info=results[0])
        finally:
            for task in beside:
                task.cancel()

    async def _lead(self) -> None:
        await self._first_look()
        self._leads_since = time.monotonic()
        self._telemetry("apparate_operator_leading").set(1)
        environment = self.reconciler.environment
        if not environment.has(SECRET):
            log.info("Secrets NAME-redis of an earlier setting, if there are any, stay: this takes rights on Secrets")
        log.info("leads", name=self.settings.name, models=len(self.store.models))
        workers = [asyncio.create_task(self._work(), name=f"work-{n}") for n in range(self.settings.workers)]
        for key in list(self.store.models):
            self.queue.add(key, urgent=False)
        try:
            while True:
                await asyncio.sleep(self.settings.resync_seconds)
                try:
                    await self.resync()
                except KubeError as error:
                    log.warning("not everything could be listed; tried again later", error=str(error))
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _first_look(self) -> None:
        """Everything there is, before anything is decided: an object not yet heard of must not be made anew."""
        while True:
            try:
                self.reconciler.environment = await self.environment()
                self.store.begin_listing()
                for kind in self._kinds():
                    self.store.replace(kind, *await self.cluster.everything(kind))
                break
            except KubeError as error:
                log.warning("the first look failed; tried again", error=str(error))
                await asyncio.sleep(1.0)
            finally:
                self.store.end_listing()
        self._telemetry("apparate_operator_last_resync_timestamp_seconds").set(time.time())

    async def environment(self) -> Environment:
        """What the operator was told, and what the cluster has now. Raises KubeError."""
        settings = self.settings
        found = Environment(
            settings.worker_image,
            settings.redis_url,
            settings.redis_secret,
            await self.cluster.apis(),
            monitor_labels=settings.monitor_label_pairs,
            scrape_interval=settings.scrape_interval,
            warning=self.health.outdated,
        )
        if found.makes_secrets:
            return found
        return replace(found, tends_secrets=not await self.cluster.lacks({"list delete": (SECRET,)}))

    def _kinds(self) -> list[Kind]:
        """Models first, so that what belongs to them is known to."""
        return [MODEL, *(kind for kind in CHILDREN if self.reconciler.environment.has(kind))]

    async def resync(self) -> None:
        """List everything, see whether watches have missed something, and look at every model. Raises KubeError."""
        self.reconciler.environment = await self.environment()
        self.store.begin_listing()
        try:
            for kind in self._kinds():
                await self._relist(kind)
        finally:
            self.store.end_listing()
        for key in list(self.store.models):
            self.queue.add(key, urgent=False)
        self._telemetry("apparate_operator_last_resync_timestamp_seconds").set(time.time())

    async def _relist(self, kind: Kind) -> None:
        bodies, listed = await self.cluster.everything(kind)
        if kind in WATCHED:
            late = self.store.behind(kind, bodies)
            if late:
                await asyncio.sleep(CATCH_UP_S)
                late = [one for one in late if one in self.store.behind(kind, bodies)]
            self.health.watched(kind, missed=len(late))
            if late:
                self._telemetry("apparate_operator_missed_changes", kind=kind.name).inc(len(late))
                log.error("a watch has missed changes; the list made up for it", kind=kind.name, objects=late[:5])
        for key in self.store.replace(kind, bodies, listed):
            self.queue.add(key)

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            self._telemetry("apparate_operator_waiting_models").set(len(self.queue))
            began = time.monotonic()
            self._traces.begin()
            try:
                again_s = await self.reconciler.reconcile(key)
            except NotLeading:
                self.queue.done(key)
                continue
            except KubeError as error:
                self._failed(key, began, "api", str(error))
                continue
            except Exception as error:
                log.exception("reconcile failed", model="/".join(key))
                self._failed(key, began, "unexpected", repr(error))
                continue
            self._telemetry("apparate_operator_reconciles", result="done").inc()
            self._telemetry("apparate_operator_reconcile_seconds").observe(time.monotonic() - began)
            self._traces.end(key, self.store.models.get(key), began)
            self._show(key)
            self.queue.done(key)
            if again_s is not None:
                self.queue.add_after(key, max(again_s, 0.05))

    def _show(self, key: Key) -> None:
        body = self.store.models.get(key)
        if body is None:
            self._shown.forget(key)
        elif self.leads():
            self._shown.show(key, body.get("status") or {})

    def _failed(self, key: Key, began: float, kind: str, error: str) -> None:
        self._traces.end(key, self.store.models.get(key), began, kind, error)
        pause = self.queue.failed(key)
        self._show(key)
        self._telemetry("apparate_operator_reconciles", result=kind).inc()
        log.warning("reconcile is tried again", model="/".join(key), in_s=round(pause, 1), error=error)

    async def watch_rights(self) -> None:
        """Raises KubeError when reading is not allowed any more: kopf would try its watches again for ever."""
        while True:
            await asyncio.sleep(min(self.settings.resync_seconds, RIGHTS_S))
            for kind in WATCHED:
                try:
                    await self.cluster.probe(kind)
                except KubeError as error:
                    if error.status in (UNAUTHORIZED, FORBIDDEN):
                        raise
                    log.warning("whether reading is still allowed is not known", why=str(error))

    async def _watch_lag(self) -> None:
        trimmed = time.monotonic()
        while True:
            due = time.monotonic() + LAG_S
            if due - trimmed > TRIM_S and not len(self.queue):
                trimmed = due
                give_back()
            await asyncio.sleep(LAG_S)
            self._telemetry("apparate_operator_loop_lag_seconds").set(max(0.0, time.monotonic() - due))
            self._telemetry("apparate_operator_models").set(len(self.store.models))

    async def _watch_definition(self) -> None:
        """Say so, and have every model say so, when the CustomResourceDefinition is of an older version."""
        told = None
        while True:
            try:
                found = outdated(lacking(await self.cluster.definition()))
            except KubeError as error:
                found = ""
                if error.status in (FORBIDDEN, NOT_FOUND) and told is None:
                    log.warning("whether the CustomResourceDefinition is of this version is not known", why=str(error))
            if found != (told or ""):
                log.log(ERROR if found else INFO, found or "the CustomResourceDefinition is as this version needs it")
                self.health.outdated = found
                self.reconciler.environment = replace(self.reconciler.environment, warning=found)
                for key in self.store.models if self.leads() else ():
                    self.queue.add(key, urgent=False)
            told = found
            self._telemetry("apparate_operator_crd_outdated").set(bool(found))
            await asyncio.sleep(min(self.settings.resync_seconds, DEFINITION_S))

    def _wrote(self, kind: str, verb: str) -> None:
        self._telemetry("apparate_operator_writes", kind=kind, verb=verb).inc()
        self._traces.wrote(kind, verb)

    def close(self) -> None:
        """Let go of threads."""
        self.threads.shutdown(wait=False, cancel_futures=True)
