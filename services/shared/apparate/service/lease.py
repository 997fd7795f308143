"""Leadership by a Lease: of all processes that ask, one at a time has it."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import UTC, datetime
from typing import Any

from apparate.service.kube import CONFLICT, NOT_FOUND, KubeClient, KubeError
from apparate.service.telemetry import get_logger

Json = dict[str, Any]
DURATION_S = 15  # without a sign of life for so long the holder is taken for dead
RENEW_S = 3.0
GIVE_UP_S = 10.0  # a holder that could not renew for so long stops, well before anybody else may begin
CALL_S = 3.0
ADDRESS = "apparate.dev/address"
"""Annotation of a Lease: where its holder answers, as host:port."""
log = get_logger(__name__)


class Leadership:
    """One Lease as seen by one candidate. Times are this process's own: clocks of other machines do not matter."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        *,
        address: str = "",
        threads: Executor | None = None,
        duration_s: int = DURATION_S,
        renew_s: float = RENEW_S,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self._client, self._namespace, self._name, self.identity = client, namespace, name, identity
        self._address, self._known_address = address, ""
        self._threads, self._duration_s, self._renew_s, self._give_up_s = threads, duration_s, renew_s, give_up_s
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._seen: tuple[str, str] | None = None
        self._seen_at = 0.0
        self._lease: Json | None = None
        self._calling = threading.Lock()
        self.holder = ""
        """Who leads, as far as is known."""

    @property
    def leader_address(self) -> str:
        """Where who leads answers, as host:port; empty when that is not known."""
        return self._known_address if self.holder else ""

    async def acquire(self) -> None:
        """Wait until this process leads."""
        failing = False
        while True:
            try:
                if await self._call(self._try_to_take):
                    log.info("leads", lease=self._name, identity=self.identity)
                    return
                failing = False
            except KubeError as error:
                if not failing:
                    log.warning("lease cannot be had, tried again", lease=self._name, error=str(error))
                failing = True
            await asyncio.sleep(self._renew_s * random.uniform(0.5, 1.0))

    async def hold(self) -> None:
        """Renew until the leadership is lost; whatever it protects must then stop."""
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(self._renew_s)
            started, left = time.monotonic(), self._give_up_s - (time.monotonic() - renewed)
            try:
                if left <= 0 or not await asyncio.wait_for(self._call(self._renew), left):
                    break
                renewed = started
            except TimeoutError:
                break
            except KubeError as error:
                log.warning("lease was not renewed", lease=self._name, error=str(error))
        log.error("leadership is lost", lease=self._name, identity=self.identity, holder=self.holder)

    async def release(self) -> None:
        """Let somebody else lead at once, when this process still does."""
        if self._lease is None:
            return
        try:
            await self._call(self._give_away)
        except KubeError as error:
            log.warning("lease was not released; it expires", lease=self._name, error=str(error))

    async def _call(self, call: Callable[[], bool]) -> bool:
        def alone() -> bool:
            with self._calling:  # a renewal goes on in its thread when who waited for it was cancelled
                return call()

        return await asyncio.get_running_loop().run_in_executor(self._threads, alone)

    def _try_to_take(self) -> bool:
        try:
            lease = self._client.call("GET", f"{self._path}/{self._name}", timeout_s=CALL_S)
        except KubeError as error:
            if error.status != NOT_FOUND:
                raise
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name, "namespace": self._namespace},
            }
            return self._write("POST", self._path, lease, changes=0)
        spec = lease.get("spec", {})
        self.holder = str(spec.get("holderIdentity") or "")
        self._known_address = str((lease["metadata"].get("annotations") or {}).get(ADDRESS, ""))
        sign = (self.holder, str(spec.get("renewTime", "")))
        if sign != self._seen:
            self._seen, self._seen_at = sign, time.monotonic()
        allowed_s = float(spec.get("leaseDurationSeconds") or self._duration_s)
        if self.holder not in ("", self.identity) and time.monotonic() - self._seen_at < allowed_s:
            return False
        changes = int(spec.get("leaseTransitions") or 0) + (self.holder != self.identity)
        return self._write("PUT", f"{self._path}/{self._name}", lease, changes=changes)

    def _renew(self) -> bool:
        assert self._lease is not None
        changes = int(self._lease["spec"].get("leaseTransitions") or 0)
        if self._write("PUT", f"{self._path}/{self._name}", self._lease, changes=changes):
            return True
        found = self._client.call("GET", f"{self._path}/{self._name}", timeout_s=CALL_S)
        self.holder = str(found.get("spec", {}).get("holderIdentity") or "")
        if self.holder != self.identity:
            return False
        self._lease = found  # our own write, whose answer was lost
        return self._write("PUT", f"{self._path}/{self._name}", found, changes=changes)

    def _give_away(self) -> bool:
        assert self._lease is not None
        lease, self._lease = self._lease, None
        spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        self._client.call("PUT", f"{self._path}/{self._name}", body={**lease, "spec": spec}, timeout_s=CALL_S)
        return True

    def _write(self, method: str, path: str, lease: Json, *, changes: int) -> bool:
        """Put our name and the time on it; False when another one was quicker."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = lease.get("spec", {})
        own = old.get("holderIdentity") == self.identity
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._duration_s,
            "acquireTime": old.get("acquireTime", now) if own else now,
            "renewTime": now,
            "leaseTransitions": changes,
        }
        others = {k: v for k, v in (lease["metadata"].get("annotations") or {}).items() if k != ADDRESS}
        annotations = others | ({ADDRESS: self._address} if self._address else {})
        body = {**lease, "metadata": {**lease["metadata"], "annotations": annotations}, "spec": spec}
        try:
            self._lease = self._client.call(method, path, body=body, timeout_s=CALL_S)
        except KubeError as error:
            if error.status == CONFLICT:
                return False
            raise
        self.holder, self._known_address = self.identity, self._address
        return True
