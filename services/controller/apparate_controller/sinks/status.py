"""Plans on Kubernetes: the controller's whole share of one object's status, by server-side apply."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from datetime import UTC, datetime
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from apparate.contract.conditions import CONTROLLER, with_condition
from apparate.contract.resource import GROUP, KIND, VERSION, Condition, Delivery, Observed, PlanStatus, Status
from apparate.contract.rollback import history_with
from apparate.contract.shape import problem_of
from apparate.plan import newer
from apparate.service.kube import CONFLICT, Json, KubeClient, KubeError, apply_status, model_path, version_of
from apparate.service.telemetry import get_logger
from apparate_controller.errors import PlanRefused, PlanUnreadable
from apparate_controller.sinks.shares import TYPES, in_order, share_in, with_bounded_revisions

EVERY_S = 1.0  # between writes of one status; the first after a quiet second does not wait
ATTEMPTS = 5  # when others write the same object at the same moment
RETRY_S = (0.5, 30.0)  # first and longest pause after a write that failed
UNWRITTEN_S = 10.0  # shorter failures are nobody's business: the next attempt mends them
T = TypeVar("T")
log = get_logger(__name__)


class StatusSink:
    """Adapter of loop.PlanSink, and the only writer of the controller's share of one object's status.

    What is in force is what the object says: `see` it whenever it changes. Writes name the version that they were
    made for, so that a plan somebody else put there meanwhile is never overwritten unseen. `run` writes what was
    reported, as often as allowed, and puts the share right when others changed it.
    """

    def __init__(
        self,
        client: KubeClient,
        thing: Json,
        *,
        threads: Executor | None = None,
        every_s: float = EVERY_S,
        wrote: Callable[[], None] = lambda: None,
    ) -> None:
        meta = thing["metadata"]
        self._client, self._threads, self._every_s, self._wrote = client, threads, every_s, wrote
        self._namespace, self._name, self._uid = meta["namespace"], meta["name"], meta["uid"]
        self._object = with_bounded_revisions(thing)
        self._plan: Json = {}
        """The last plan that was published here."""
        share = share_in(self._object)
        self._history: list[Json] = share.get("history", [])
        self._reported: Json = {name: share[name] for name in ("observed", "delivery") if name in share}
        self._conditions = _conditions(share)
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._next_at = 0.0
        self._unwritten, self._unwritten_since = "", 0.0

    def see(self, thing: Json) -> None:
        """Take note of the object as it is now; an older one than is known, or another of its name, is ignored."""
        if thing["metadata"]["uid"] != self._uid or version_of(thing) < version_of(self._object):
            return
        before, self._object = self._in_force, with_bounded_revisions(thing)
        self._history = history_with(self._history, before, self._revision)
        self._changed.set()

    async def current(self) -> PlanStatus | None:
        """The plan in force; None when there is none. Raises PlanUnreadable."""
        plan = self._in_force
        try:
            return PlanStatus.model_validate(plan) if plan else None
        except ValidationError as error:
            raise PlanUnreadable(f"status.plan of {self._namespace}/{self._name}: {problem_of(error)}") from None

    async def history(self) -> list[PlanStatus]:
        """Plans that were in force before, newest first."""
        found = []
        for plan in self._history:
            with contextlib.suppress(ValidationError):
                found.append(PlanStatus.model_validate(plan))
        return found

    async def publish(self, plan: PlanStatus) -> bool:
        """Put a plan in force; False when it already is. Raises PlanRefused, and KubeError when it was not written."""
        async with self._lock:
            if await self._in_force_already(plan):
                return False
            await asyncio.sleep(max(0.0, self._next_at - time.monotonic()))
            if await self._in_force_already(plan):
                return False
            await self._write(plan)
            return True

    def report(
        self,
        *,
        observed: Observed | None = None,
        delivery: Delivery | None = None,
        conditions: Iterable[Condition] = (),
    ) -> None:
        """Have the status say this; what is left out stays as it is."""
        if observed is not None:
            self._reported["observed"] = _plain(observed)
        if delivery is not None:
            self._reported["delivery"] = _plain(delivery)
        now = datetime.now(UTC)
        for condition in conditions:
            self._conditions = with_condition(self._conditions, condition, now)
        self._changed.set()

    def says(self, kind: str) -> bool:
        """Whether there is a condition of that type."""
        return any(one.type == kind for one in self._conditions)

    @property
    def problem(self) -> str:
        """Why what was reported is not in the status for some time; empty when it is."""
        lasting = self._unwritten and time.monotonic() - self._unwritten_since >= UNWRITTEN_S
        return f"its status is not written: {self._unwritten}" if lasting else ""

    async def run(self) -> None:
        """Write what differs, until cancelled."""
        pause, longest = RETRY_S
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._settle()
                if self._unwritten:
                    log.info("status is written again", model=f"{self._namespace}/{self._name}")
                self._unwritten, pause = "", RETRY_S[0]
            except KubeError as error:
                if not self._unwritten:
                    self._unwritten_since = time.monotonic()
                if self._unwritten != str(error):
                    log.warning("status was not written", model=f"{self._namespace}/{self._name}", error=str(error))
                self._unwritten = str(error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, longest)
                self._changed.set()

    async def _settle(self) -> None:
        while self._differs():
            await asyncio.sleep(max(0.0, self._next_at - time.monotonic()))
            async with self._lock:
                if not self._differs() or self._next_at > time.monotonic():
                    continue
                await self._write()
                if self._differs():  # the API server keeps something else: an older CRD, say
                    raise KubeError(0, "the status is not what was written: is the CustomResourceDefinition older?")

    @property
    def _in_force(self) -> Json:
        plan: Json = (self._object.get("status") or {}).get("plan") or {}
        return plan

    @property
    def _revision(self) -> int:
        return int(self._in_force.get("revision", 0))

    async def _in_force_already(self, plan: PlanStatus) -> bool:
        try:
            current = await self.current()
        except PlanUnreadable:
            return False  # whatever it is, workers cannot run it either
        if current is None or newer(plan.revision, current.revision):
            return False
        if current.revision == plan.revision and current.to_plan().same_settings(plan.to_plan()):
            return True
        raise PlanRefused(plan.revision, current.revision)

    def _share(self, plan: PlanStatus | None = None) -> Json:
        """The whole share as it ought to be, with `plan` in force if one is given."""
        in_force = _plain(plan) if plan is not None else self._plan
        if plan is None and newer(self._revision, int(in_force.get("revision", 0))):
            in_force = self._in_force  # somebody put a newer one there
        history = history_with(self._history, self._in_force, int(in_force.get("revision", 0)))
        share: Json = {"plan": in_force, "history": history, **self._reported}
        share["conditions"] = [_plain(one) for one in self._conditions]
        return {name: part for name, part in share.items() if part}

    def _differs(self) -> bool:
        return bool(in_order(self._share()) != in_order(share_in(self._object)))

    async def _write(self, plan: PlanStatus | None = None) -> None:
        before = self._revision
        for _ in range(ATTEMPTS):
            try:
                self._next_at = time.monotonic() + self._every_s
                share = self._share(plan)
                thing = await self._call(
                    apply_status, self._client, self._namespace, self._name, self._body(share), CONTROLLER
                )
                self._plan = share.get("plan", {})
                self.see(thing)
                self._wrote()
                return
            except KubeError as error:
                if error.status != CONFLICT:
                    raise
            self.see(await self._call(self._client.call, "GET", model_path(self._namespace, self._name)))
            if plan is not None and await self._in_force_already(plan):
                return
            if plan is not None and newer(self._revision, before):  # somebody's, which this plan was decided without
                raise PlanRefused(plan.revision, self._revision)
        raise KubeError(CONFLICT, f"status of {self._namespace}/{self._name} changed {ATTEMPTS} times while written")

    def _body(self, share: Json) -> Json:
        meta = self._object["metadata"]
        return {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": {
                "name": self._name,
                "namespace": self._namespace,
                "uid": self._uid,
                "resourceVersion": meta["resourceVersion"],
            },
            "status": share,
        }

    async def _call(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(call, *args))


def _plain(shape: BaseModel) -> Json:
    found: Json = shape.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


def _conditions(share: Json) -> tuple[Condition, ...]:
    """Those conditions of a share that can be read."""
    try:
        found = Status.model_validate({"conditions": share.get("conditions", [])}).conditions
    except ValidationError:
        return ()
    return tuple(one for one in found if one.type in TYPES)
