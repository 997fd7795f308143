"""The worker's own EarlyExitModel on Kubernetes: read at start, then followed in its plan and what needs no restart.

Needs `get` and `watch` on that one object. While the API server is away the plan in force stays.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from apparate.contract.document import Document
from apparate.contract.resource import Adaptation, Budget, EarlyExitModel, TensorSpec
from apparate.contract.serving import Serving, Slo
from apparate.contract.shape import problem_of
from apparate.contract.stream import plans_key
from apparate.service.kube import KubeClient, KubeError, client_of, model_path, models_path
from apparate.service.telemetry import get_logger
from apparate.service.watch import WATCH_S, Listed, Watch
from apparate_worker.errors import InvalidSetup
from apparate_worker.model.store import CATALOG
from apparate_worker.plans import PlanSource, RedisPlanSource
from apparate_worker.settings import WorkerSettings

READ_WITHIN_S = 60.0  # rights of a fresh service account come into force after its pod starts
PAUSE_S = 1.0
NOWHERE = Path("/")  # relative paths of an object mean nothing in a pod
log = get_logger(__name__)


@dataclass(frozen=True)
class Wishes:
    """The parts of a spec that a running worker follows."""

    budget: Budget
    adaptation: Adaptation
    replicas: int
    """Workers that share the accuracy budget of a window."""
    slo: Slo | None = None
    checked_share: float = 1.0
    """Least probability with which a batch is run to the end: less than 1 in the mode compact."""

    @classmethod
    def of(cls, spec: dict[str, Any]) -> Wishes:
        """Of a spec as the API server has it. Raises ValidationError."""
        serving = Serving.model_validate(spec.get("serving", {}))
        return cls(
            Budget.model_validate(spec.get("budget", {})),
            Adaptation.model_validate(spec.get("adaptation", {})),
            serving.replicas,
            serving.slo,
            serving.checked_share,
        )


class ObjectPlanSource:
    """Adapter of PlanSource: `status.plan` of one EarlyExitModel.

    `wishes` is called with the spec's part that can change under way, before any plan that came with it.
    """

    def __init__(
        self,
        client: KubeClient,
        document: Document,
        wishes: Callable[[Wishes], None] = lambda _: None,
        *,
        watch_s: float = WATCH_S,
    ) -> None:
        self._meta, self._wishes = document.model.metadata, wishes
        self._client = client
        self._watch = Watch(client, models_path(self._meta.namespace), name=self._meta.name, watch_s=watch_s)
        self._told: Wishes | None = None

    async def plans(self) -> AsyncIterator[bytes]:
        """See PlanSource. A plan that was told before is told again only when the spec changed meanwhile."""
        last: Any = None
        async for event in self._watch.events():
            if isinstance(event, Listed) or event.kind == "DELETED" or not self._is_own(event.object):
                continue
            if self._wish(event.object.get("spec", {})):
                last = None
            plan = event.object.get("status", {}).get("plan")
            if plan is not None and plan != last:
                last = plan
                yield json.dumps(plan).encode()

    async def close(self) -> None:
        """End the watch."""
        self._watch.close()
        self._client.close()

    def _is_own(self, found: dict[str, Any]) -> bool:
        """Whether this is the object that this worker was started for, not a later one of the same name."""
        uid = found.get("metadata", {}).get("uid")
        if uid != self._meta.uid:
            log.warning("another object has this name; the plan in force stays", uid=uid, own_uid=self._meta.uid)
        return bool(uid == self._meta.uid)

    def _wish(self, spec: dict[str, Any]) -> bool:
        """Tell of a changed spec; whether it did."""
        try:
            wishes = Wishes.of(spec)
        except ValidationError as error:
            log.warning("spec is not usable; budget and adaptation stay as they are", error=problem_of(error))
            return False
        if wishes == self._told:
            return False
        self._told = wishes
        self._wishes(wishes)
        loss, overhead, paused = wishes.budget.accuracy_loss, wishes.budget.ramp_overhead, wishes.adaptation.paused
        share = wishes.checked_share
        log.info("spec followed", accuracy_loss=loss, ramp_overhead=overhead, paused=paused, checked_share=share)
        return True


def plan_source(settings: WorkerSettings, document: Document, wishes: Callable[[Wishes], None]) -> PlanSource | None:
    """Where this worker's plans come from; None serves the plain model. Raises InvalidKubeconfig."""
    if settings.object:
        return ObjectPlanSource(client_of(settings.kubeconfig), document, wishes)
    return RedisPlanSource(settings.redis_url, plans_key(document.model.key)) if settings.redis_url else None


def read_object(client: KubeClient, key: str, within_s: float = READ_WITHIN_S) -> Document:
    """The document of the object NAMESPACE/NAME, tried again until it can be read. Raises InvalidSetup."""
    namespace, _, name = key.partition("/")
    give_up = time.monotonic() + within_s
    while True:
        try:
            return Document(EarlyExitModel.model_validate(client.call("GET", model_path(namespace, name))), NOWHERE)
        except ValidationError as error:
            raise InvalidSetup(f"EarlyExitModel {key}: {problem_of(error)}") from None
        except KubeError as error:
            if time.monotonic() > give_up:
                raise InvalidSetup(f"EarlyExitModel {key} cannot be read for {within_s:.0f} s: {error}") from None
            log.warning("the object cannot be read yet, tried again", object=key, error=str(error))
            time.sleep(PAUSE_S)


def as_prepared(document: Document, folder: Path | None) -> Document:
    """The document with the inputs that its folder was prepared for.

    A spec that asks for other inputs is prepared beside the folder that is served: a worker that is started again
    meanwhile goes on with what it has. A folder that cannot be read is told of when it is loaded.
    """
    try:
        inputs = json.loads(((folder or document.prepared) / CATALOG).read_text(encoding="utf-8"))["inputs"]
        known = tuple(TensorSpec.model_validate(one) for one in inputs)
    except (OSError, ValueError, KeyError, TypeError):
        return document
    model = document.model
    source = model.spec.model.model_copy(update={"inputs": known})
    spec = model.spec.model_copy(update={"model": source})
    return replace(document, model=model.model_copy(update={"spec": spec}))


def check_is_object(document: Document, key: str) -> None:
    """Make sure that a mounted document is a copy of the object NAMESPACE/NAME. Raises InvalidSetup."""
    meta = document.model.metadata
    if f"{meta.namespace}/{meta.name}" != key:
        raise InvalidSetup(f"EEM_WORKER_OBJECT is {key}, the document is of {meta.namespace}/{meta.name}")
    if meta.uid == "local":
        raise InvalidSetup(f"the document of {key} has no metadata.uid, so its feedback would reach nobody")
