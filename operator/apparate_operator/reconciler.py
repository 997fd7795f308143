"""One look at one model: what is there, what is next, do it, say so. Safe to run at any time, any number of times."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from pydantic import ValidationError

from apparate.contract.conditions import Reason
from apparate.contract.resource import EarlyExitModel
from apparate.contract.shape import problem_of
from apparate.service.kube import NOT_FOUND, KubeError
from apparate.service.telemetry import get_logger
from apparate_operator.cluster import Cluster, NameTaken
from apparate_operator.conditions import Verdict, unreadable
from apparate_operator.kinds import APPLIED, AUTOSCALER, CLAIM, JOB, MODEL, Json, Kind
from apparate_operator.lifecycle import Apply, Step, next_step
from apparate_operator.manifests.common import Environment
from apparate_operator.observed import annotation, observe
from apparate_operator.store import Key, Store, own_share

REFUSED_AGAIN_S = 60.0  # something that the API refused may be mended outside of the spec, say by a larger quota
REFUSALS = (400, 403, 404, 405, 413, 422)
NO_SUCH_FIELD = "failed to create typed patch object"  # server-side apply tells of unknown fields with status 500
log = get_logger(__name__)


class Outdated(Exception):
    """What was decided on is not what is there any more."""


class Reconciler:
    """Brings what the cluster runs for models to what their specs ask."""

    def __init__(self, store: Store, cluster: Cluster, leads: Callable[[], bool]) -> None:
        self._store, self._cluster, self._leads = store, cluster, leads
        self.environment = Environment("")
        self._marks: dict[tuple[str, Kind, str], str] = {}
        """By model and object: its generation after our last write; another one means that somebody changed it."""
        self._refused: dict[str, tuple[int, Verdict]] = {}
        """By model: what the API refused of a generation."""

    async def reconcile(self, key: Key) -> float | None:
        """Bring one model to its next state; after how many seconds to look again though nothing changed.

        Raises KubeError when the API server could not be asked, or another failure that may pass.
        """
        body = self._store.models.get(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            return None  # Kubernetes deletes what it owns
        try:
            model = _read(body)
        except ValidationError as error:
            await self._report(key, body, unreadable(body, problem_of(error), datetime.now(UTC)))
            return None
        uid = model.metadata.uid
        observed = observe(self._store.of(uid))
        step = next_step(
            model, observed, self.environment, datetime.now(UTC), refused=self._refusal(uid, model.metadata.generation)
        )
        try:
            refused = await self._do(key, model, step)
        except Outdated:
            return 0.0
        if refused is not None:
            self._refused[uid] = (model.metadata.generation, refused)
            step = next_step(model, observed, self.environment, datetime.now(UTC), refused=refused)
        else:
            self._refused.pop(uid, None)
        await self._report(key, body, step.status, model, step)
        if refused is not None:
            return REFUSED_AGAIN_S
        return step.again_s

    async def _do(self, key: Key, model: EarlyExitModel, step: Step) -> Verdict | None:
        """Write and delete; what the API refused. Raises Outdated and KubeError."""
        uid = model.metadata.uid
        known = self._store.of(uid)
        applies = [one for one in step.applies if self._differs(uid, one, known.get((one.kind, one.name)))]
        deletions = [(kind, name, known[kind, name]) for kind, name in step.deletions if (kind, name) in known]
        if not applies and not deletions:
            return None
        await self._still(key, model)
        for one in applies:
            try:
                await self._apply(one, uid, fresh=(one.kind, one.name) not in known)
            except NameTaken as error:
                return Verdict(False, Reason.RECONCILE_FAILED, str(error))
            except KubeError as error:
                if error.status not in REFUSALS and NO_SUCH_FIELD not in str(error):
                    raise
                return _refusal(one, error)
        for kind, name, body in deletions:
            self._must_lead()
            await self._cluster.delete(kind, key[0], name, body["metadata"]["uid"])
            self._store.drop(kind, body)
            log.info("deleted", model="/".join(key), kind=kind.name, name=name)
        return None

    async def _apply(self, one: Apply, uid: str, *, fresh: bool) -> None:
        if fresh:
            await self._cluster.check_free(one, uid)
        self._must_lead()
        written = await self._cluster.apply(one)
        self._store.put(one.kind, written)
        self._marks[uid, one.kind, one.name] = _mark(one.kind, written)
        log.info("applied", namespace=written["metadata"]["namespace"], kind=one.kind.name, name=one.name)

    def _differs(self, uid: str, one: Apply, known: Json | None) -> bool:
        """Whether an object has to be written: it is missing, was made from another manifest, or was changed since."""
        if known is None:
            return True
        if APPLIED not in one.body["metadata"].get("annotations", {}):
            return True
        if annotation(known, APPLIED) != annotation(one.body, APPLIED):
            return True
        place, now = (uid, one.kind, one.name), _mark(one.kind, known)
        if place not in self._marks:  # written before this process led
            if now and known["metadata"].get("touched"):
                return True
            self._marks[place] = now
            return False
        return self._marks[place] != now

    async def _still(self, key: Key, model: EarlyExitModel) -> None:
        """What is known of a model may be old, even of one that is deleted. Raises Outdated; one read before writes."""
        found = await self._cluster.get(MODEL, *key)
        if found is None or found["metadata"]["uid"] != model.metadata.uid:
            self._store.drop(MODEL, self._store.models.get(key) or {"metadata": model.metadata.model_dump()})
            if found is not None:
                self._store.put(MODEL, found)
            raise Outdated
        self._store.put(MODEL, found)
        if found["metadata"].get("deletionTimestamp") or found["metadata"]["generation"] != model.metadata.generation:
            raise Outdated

    async def _report(
        self, key: Key, body: Json, status: Json, model: EarlyExitModel | None = None, step: Step | None = None
    ) -> None:
        current = self._store.models.get(key, body)
        if own_share(current.get("status") or {}) == status:
            return
        self._must_lead()
        try:
            written = await self._cluster.report(*key, body["metadata"]["uid"], status)
        except KubeError as error:
            if error.status == NOT_FOUND:  # deleted meanwhile
                return
            raise
        self._store.put(MODEL, written)
        if model is None or step is None:
            return
        for told in step.events:
            try:
                await self._cluster.tell(model, told)
            except KubeError as error:
                log.warning("event was not written", model="/".join(key), reason=told.reason, error=str(error))
            log.info("model", model="/".join(key), reason=told.reason, message=told.message)

    def _refusal(self, uid: str, generation: int) -> Verdict | None:
        known = self._refused.get(uid)
        return known[1] if known is not None and known[0] == generation else None

    def _must_lead(self) -> None:
        if not self._leads():
            raise NotLeading

    def forget(self, uid: str) -> None:
        """A model is gone."""
        self._refused.pop(uid, None)
        for mark in [one for one in self._marks if one[0] == uid]:
            del self._marks[mark]


class NotLeading(RuntimeError):
    """Another replica may have begun to lead: nothing may be written."""


def _mark(kind: Kind, body: Json) -> str:
    """What changes when somebody changes an object's spec; nothing for kinds that others change by right."""
    if kind in (CLAIM, JOB, AUTOSCALER):
        return ""
    meta = body["metadata"]
    return str(meta.get("generation") or meta.get("resourceVersion", ""))


def _refusal(one: Apply, error: KubeError) -> Verdict:
    rejected = error.status in (400, 422) or NO_SUCH_FIELD in str(error)
    reason = Reason.REJECTED if rejected else Reason.RECONCILE_FAILED
    said = str(error).partition(": ")[2] or str(error)
    if "exceeded quota" in said:
        reason = Reason.QUOTA_EXCEEDED
    return Verdict(False, reason, f"{one.kind.name} {one.name} was refused: {said}")


def _read(body: Json) -> EarlyExitModel:
    """A model from its object; a status that another version wrote is no reason not to look after it."""
    try:
        return EarlyExitModel.model_validate(body)
    except ValidationError:
        return EarlyExitModel.model_validate({name: part for name, part in body.items() if name != "status"})
