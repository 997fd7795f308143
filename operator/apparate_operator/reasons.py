"""Why pods do not do what they are for, in the pods' own words, and what a user can do about it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from apparate.contract.conditions import Reason
from apparate_operator.kinds import Json

MESSAGE_LIMIT = 1000  # characters of what a pod said; a whole traceback helps nobody in a table
CANNOT_START = 2  # exit status of a worker that was asked for something it cannot do
POD_NAME = re.compile(r'pods "[^"]*"')  # another one for each try: the same refusal must read the same
RESOURCE = re.compile(r"Insufficient ([a-z0-9./-]+)")
CLAIM = re.compile(r"persistentvolumeclaim", re.IGNORECASE)
NO_WORD = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True)
class Problem:
    """One reason with its sentence; `weight` says which of several is told: the one nearest to the cause."""

    reason: str
    message: str
    weight: int


_IMAGES = "check spec.serving.image, oci:// sources, and the Secrets that open their registries"
_WAITING: Mapping[str, tuple[str, int, str]] = {
    "ImagePullBackOff": (Reason.IMAGE_PULL, 60, _IMAGES),
    "ErrImagePull": (Reason.IMAGE_PULL, 60, _IMAGES),
    "ErrImageNeverPull": (Reason.IMAGE_PULL, 60, "the image is not on the node and its pull policy is Never"),
    "InvalidImageName": (Reason.IMAGE_NAME, 60, "correct spec.serving.image or the oci:// source"),
    "CreateContainerConfigError": (Reason.CONTAINER_CONFIG, 60, "check the Secrets and ConfigMaps that the pod names"),
    "CrashLoopBackOff": (Reason.CRASH_LOOP, 50, "see `kubectl logs --previous`"),
}


def worst(pods: Iterable[Json]) -> Problem | None:
    """The problem of some pods that explains most; None when they have none."""
    found = [problem for pod in pods for problem in problems(pod)]
    return max(found, key=lambda one: (one.weight, one.message), default=None)


def problems(pod: Json) -> Iterator[Problem]:
    """What keeps one pod from its work."""
    if pod["metadata"].get("deletionTimestamp"):
        return
    name, status = pod["metadata"]["name"], pod["status"]
    for condition in status.get("conditions", ()):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield _unscheduled(name, str(condition.get("reason", "")), str(condition.get("message", "")))
    for container in status.get("containers", ()):
        yield from _container(name, container)
    if status.get("phase") == "Failed" and status.get("reason"):  # evicted, or refused by the node
        yield Problem(_word(status["reason"], "PodFailed"), f"{name}: {short(status.get('message', ''))}", 40)


def _unscheduled(pod: str, reason: str, said: str) -> Problem:
    lacking = RESOURCE.search(said)
    if lacking:
        step = f"free {lacking[1]} on a node, add a node that has it, or ask for less"
    elif "volume node affinity" in said:
        step = (
            "the volume of a claim is on another node or in another zone: take a StorageClass that binds when pods come"
        )
    elif "taint" in said:
        step = "add a toleration to the pod template, or a node without the taint"
    elif "selector" in said or "affinity" in said:
        step = "check nodeSelector and affinity of the pod template"
    elif CLAIM.search(said) and '" not found' in said:
        step = "make the claim, or correct its name in pvc:// sources and spec.storage.pvc.claimName"
    elif CLAIM.search(said):
        step = "see `kubectl describe pvc`, and whether there is the StorageClass of spec.storage.pvc.storageClassName"
    else:
        step = f"see `kubectl describe pod {pod}`"
    kind = _word(reason, Reason.UNSCHEDULABLE)
    if CLAIM.search(said) and not lacking:
        kind = Reason.STORAGE_PENDING
    return Problem(str(kind), f"{pod} cannot be scheduled: {short(said)}; {step}", 45)


def _container(pod: str, container: Mapping[str, Any]) -> Iterator[Problem]:
    state, last = container.get("state") or {}, container.get("lastState") or {}
    ended = state.get("terminated") or last.get("terminated")
    if ended is not None and ended.get("exitCode", 0) != 0 and not container.get("ready"):
        yield _ended(pod, ended, int(container.get("restartCount", 0)))
    waiting = state.get("waiting")
    if waiting and waiting.get("reason") in _WAITING:
        reason, weight, step = _WAITING[waiting["reason"]]
        said = short(waiting.get("message", ""))
        if reason == Reason.CONTAINER_CONFIG:
            reason = _missing_secret(said) or reason
        yield Problem(str(reason), f"{pod}: {said}; {step}" if said else f"{pod}; {step}", weight)


def _missing_secret(said: str) -> str | None:
    if "secret" not in said.lower():
        return None
    return Reason.SECRET_LACKS_KEY if "couldn't find key" in said.lower() else Reason.SECRET_NOT_FOUND


def _ended(pod: str, ended: Mapping[str, Any], restarts: int) -> Problem:
    """A container that stopped by itself: its own words weigh more than `CrashLoopBackOff`, which says only that."""
    times = f", {restarts} restarts" if restarts else ""
    if ended.get("reason") == "OOMKilled":
        text = f"{pod} was killed for its memory{times}; raise resources.limits.memory or take a smaller maxBatch"
        return Problem(Reason.OUT_OF_MEMORY, text, 70)
    told = told_by(str(ended.get("message") or ""))
    if told is not None:
        return Problem(told[0], f"{pod}: {told[1]}", 65)
    code, said = int(ended.get("exitCode", 1)), short(_last_words(str(ended.get("message") or "")))
    if code == CANNOT_START:
        return Problem(Reason.MODEL_LOAD_FAILED, f"{pod}: {said or 'exit status 2'}{times}", 65)
    return Problem(Reason.CRASH_LOOP, f"{pod} ended with status {code}{times}: {said or 'it said nothing'}", 52)


def told_by(message: str) -> tuple[str, str] | None:
    """Reason and sentence that a preparation left as its termination message."""
    try:
        found = json.loads(message)
        return _word(found["reason"], Reason.CRASH_LOOP), short(found["message"])
    except (ValueError, KeyError, TypeError):
        return None


def _last_words(message: str) -> str:
    """The error of the last line of a log in JSON, else the line."""
    for line in reversed([one for one in message.splitlines() if one.strip()]):
        try:
            said = json.loads(line)
        except ValueError:
            return line.strip()
        if isinstance(said, dict) and (text := said.get("error") or said.get("event")):
            return str(text)
    return ""


def no_pods(said: str) -> tuple[str, str] | None:
    """Reason and sentence for pods that the cluster does not even make, from what it says of that; None without."""
    if not said:
        return None
    told = POD_NAME.sub("its pod", short(said))
    if "exceeded quota" in said:
        return Reason.QUOTA_EXCEEDED, f"{told}; raise the ResourceQuota or ask for less"
    if "PodSecurity" in said:
        return Reason.POD_REFUSED, f"{told}; mend securityContext and volumes of the pod template"
    if "error looking up service account" in said:
        return Reason.POD_REFUSED, f"{told}; it is made again with the next list, unless somebody deletes it"
    return Reason.POD_REFUSED, f"{told}; see spec.serving.template and spec.prepare.template"


def lacking(message: str) -> str:
    """The resource that a scheduler's message says there is not enough of; empty when it says something else."""
    found = RESOURCE.search(message)
    return found[1] if found else ""


def _word(reason: object, otherwise: str) -> str:
    """A reason of others with the characters that conditions may have: a kubelet's `OutOfnvidia.com/gpu` has more."""
    return NO_WORD.sub("_", str(reason)).strip("_").lstrip("0123456789_")[:128] or str(otherwise)


def short(text: object) -> str:
    """What others said, on one line and with an end."""
    said = " ".join(str(text).split()).rstrip(".;")
    return said if len(said) <= MESSAGE_LIMIT else said[: MESSAGE_LIMIT - 3] + "..."
