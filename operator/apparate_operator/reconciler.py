"""One look at one model: what is there, what is next, do it, say so. Safe to run at any time, any number of times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from pydantic import ValidationError

from apparate.contract.conditions import Reason
from apparate.contract.labels import PREPARE, owner
from apparate.contract.resource import EarlyExitModel
from apparate.contract.revision import revision
from apparate.contract.shape import problem_of
from apparate.service.kube import FORBIDDEN, NOT_FOUND, KubeError
from apparate.service.telemetry import get_logger
from apparate_operator.cluster import Cluster, NameNotFreeYet, NameTaken
from apparate_operator.conditions import Told, Verdict, unreadable
from apparate_operator.kinds import APPLIED, AUTOSCALER, CLAIM, CONFIG_MAP, JOB, MODEL, Json, Kind
from apparate_operator.lifecycle import Apply, Step, next_step
from apparate_operator.manifests.common import Environment, labels
from apparate_operator.manifests.prepare import catalog_name
from apparate_operator.mending import Mender
from apparate_operator.observed import Observed, annotation, observe
from apparate_operator.preparation import POD_WITHIN_S
from apparate_operator.reasons import short
from apparate_operator.store import Key, Store, own_share
from apparate_operator.times import Times
from apparate_operator.trimming import bonds

REFUSED_AGAIN_S = 60.0  # something that the API refused may be mended outside of the spec, say by a larger quota
NOT_YET_AGAIN_S = 1.0  # between two looks at what a deleted model of the same name leaves behind
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
        self._mender = Mender(cluster)
        self._times = Times()
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
            told = unreadable(body, short(problem_of(error)), datetime.now(UTC))
            await self._report(key, body, own_share(body.get("status") or {}) | told)  # its workers serve on
            return None
        uid = model.metadata.uid
        observed = self._times.own(uid, observe(self._store.of(uid)), datetime.now(UTC))
        observed = await self._with_words_on_pods(observed, key[0])
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
            return NOT_YET_AGAIN_S if refused.reason == Reason.PREPARING else REFUSED_AGAIN_S
        return step.again_s

    async def _do(self, key: Key, model: EarlyExitModel, step: Step) -> Verdict | None:
        """Write and delete; what the API refused. Raises Outdated and KubeError."""
        uid = model.metadata.uid
        known = self._store.of(uid)
        applies = [one for one in step.applies if self._differs(uid, one, known.get((one.kind, one.name)))]
        deletions = [(kind, name, known[kind, name]) for kind, name in step.deletions if (kind, name) in known]
        loose = [(kind, body) for (kind, name), body in known.items() if self._is_loose(model, kind, body)]
        loose = [(kind, body) for kind, body in loose if (kind, body["metadata"]["name"]) not in step.deletions]
        if not applies and not deletions and not loose:
            return None
        await self._still(key, model)
        for kind, body in loose:
            if (refused := await self._tie(model, kind, body)) is not None:
                return refused
        for one in applies:
            try:
                await self._apply(one, model, fresh=(one.kind, one.name) not in known)
            except NameNotFreeYet as error:
                return Verdict(False, Reason.PREPARING, str(error))
            except NameTaken as error:
                return Verdict(False, Reason.RECONCILE_FAILED, str(error))
            except KubeError as error:
                if error.status not in REFUSALS and NO_SUCH_FIELD not in str(error):
                    raise
                return refusal(one, error, mended=self._mender.lately((uid, one.kind, one.name)))
        for kind, name, body in deletions:
            self._must_lead()
            await self._cluster.delete(kind, key[0], name, body["metadata"]["uid"])
            self._store.drop(kind, body)
            log.info("deleted", model="/".join(key), kind=kind.name, name=name)
        return None

    async def _apply(self, one: Apply, model: EarlyExitModel, *, fresh: bool) -> None:
        uid = model.metadata.uid
        free = fresh and await self._cluster.check_free(one, uid)
        self._must_lead()
        try:
            written = await self._cluster.apply(one)
        except KubeError as error:
            self._must_lead()
            mended = await self._mender.mend(one, uid, error)
            if mended is None:
                raise
            written, told = mended
            await self._tell(model, told)
        self._store.put(one.kind, written)
        self._marks[uid, one.kind, one.name] = _mark(one.kind, written)
        log.info("applied", namespace=written["metadata"]["namespace"], kind=one.kind.name, name=one.name)
        if free and one.kind is CLAIM:
            await self._prepare_again(model, one.name)

    async def _prepare_again(self, model: EarlyExitModel, claim: str) -> None:
        """A claim that was made just now is empty: a catalog tells of one that somebody deleted. Raises Outdated."""
        name = catalog_name(model, revision(model.spec))
        body = self._store.of(model.metadata.uid).get((CONFIG_MAP, name))
        if body is None or "catalog" not in body:
            return
        await self._cluster.delete(CONFIG_MAP, model.metadata.namespace, name, body["metadata"]["uid"])
        self._store.drop(CONFIG_MAP, body)
        text = f"{CLAIM.name} {claim} was gone with what was prepared: it was made anew, the model is prepared again"
        await self._tell(model, Told("Warning", "StorageLost", text))
        raise Outdated

    async def _tie(self, model: EarlyExitModel, kind: Kind, body: Json) -> Verdict | None:
        """Give a Job or a catalog back to its model; what the API refused, say because it has another owner now."""
        self._must_lead()
        try:
            self._store.put(kind, await self._cluster.adopt(kind, body, labels(model, PREPARE), owner(model)))
        except KubeError as error:
            if error.status not in REFUSALS:
                raise
            name = body["metadata"]["name"]
            return Verdict(
                False, Reason.RECONCILE_FAILED, f"{kind.name} {name} has lost its owner and labels: {short(error)}"
            )
        return None

    def _is_loose(self, model: EarlyExitModel, kind: Kind, body: Json) -> bool:
        """Whether what is not applied again and again, a Job or its catalog, has lost what ties it to its model."""
        meta = body["metadata"]
        if kind not in (JOB, CONFIG_MAP) or meta.get("deletionTimestamp"):
            return False
        return bool(meta["bonds"] != bonds({"labels": labels(model, PREPARE), "ownerReferences": [owner(model)]}))

    async def _with_words_on_pods(self, observed: Observed, namespace: str) -> Observed:
        """With what Events say of Jobs that should have a pod by now and have none."""
        now = datetime.now(UTC)
        late = [job.name for job in observed.without_pods() if job.waits_s(now) >= POD_WITHIN_S]
        if not late:
            return observed
        uids = {name: observed.refs[JOB, name]["metadata"]["uid"] for name in late}
        said = {name: await self._cluster.why_no_pods(namespace, uid) for name, uid in uids.items()}
        return replace(observed, no_pods=said)

    def _differs(self, uid: str, one: Apply, known: Json | None) -> bool:
        """Whether an object has to be written: it is missing, was made from another manifest, or was changed since."""
        if known is None:
            return True
        if APPLIED not in one.body["metadata"].get("annotations", {}):
            return True
        meta = one.body["metadata"]
        if any(annotation(known, name) != value for name, value in meta["annotations"].items()):
            return True
        if known["metadata"]["bonds"] != bonds(meta):
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
            await self._tell(model, told)

    async def _tell(self, model: EarlyExitModel, told: Told) -> None:
        name = f"{model.metadata.namespace}/{model.metadata.name}"
        try:
            await self._cluster.tell(model, told)
        except KubeError as error:
            log.warning("event was not written", model=name, reason=told.reason, error=str(error))
        log.info("model", model=name, reason=told.reason, message=told.message)

    def _refusal(self, uid: str, generation: int) -> Verdict | None:
        known = self._refused.get(uid)
        return known[1] if known is not None and known[0] == generation else None

    def _must_lead(self) -> None:
        if not self._leads():
            raise NotLeading

    def forget(self, uid: str) -> None:
        """A model is gone."""
        self._refused.pop(uid, None)
        self._mender.forget(uid)
        self._times.forget(uid)
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


def refusal(one: Apply, error: KubeError, *, mended: bool) -> Verdict:
    """What the API server's refusal of one object means, with the next step."""
    admission = error.status == FORBIDDEN and not error.lacks_right
    rejected = error.status in (400, 422) or admission or NO_SUCH_FIELD in str(error)
    reason = Reason.REJECTED if rejected else Reason.RECONCILE_FAILED
    said = short(str(error).partition(": ")[2] or error)
    if "exceeded quota" in said:
        reason = Reason.QUOTA_EXCEEDED
    if one.kind is CLAIM:
        said += (
            "; a claim with prepared models is never made anew: set spec.storage to what the claim has, or name another"
        )
    if mended:
        said += "; it was mended a few minutes ago: find out who changes it"
    return Verdict(False, reason, f"{one.kind.name} {one.name} was refused: {said}")


def _read(body: Json) -> EarlyExitModel:
    """A model from its object; a status that another version wrote is no reason not to look after it."""
    try:
        return EarlyExitModel.model_validate(body)
    except ValidationError:
        return EarlyExitModel.model_validate({name: part for name, part in body.items() if name != "status"})
