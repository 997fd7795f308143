"""What `apparate doctor` looks at in a cluster: definition, rights, pods, leases, labels, models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from apparate.cli.doctor_models import in_a_cluster, of_model
from apparate.cli.errors import CommandError
from apparate.cli.findings import FAIL, OK, SKEW_S, WARN, Found, of_readiness
from apparate.cli.status import why
from apparate.cli.target import Json, key_of
from apparate.cli.target_cluster import OR_LOCAL, ClusterTarget
from apparate.contract.definition import NAME, PATH, lacking
from apparate.contract.resource import GROUP, PLURAL
from apparate.service.kube import NOT_FOUND, KubeError
from apparate.service.lease import DURATION_S

PART = "app.kubernetes.io/part-of=apparate"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
MONITORING = "/apis/monitoring.coreos.com/v1"
RIGHTS = (
    ("list", GROUP, PLURAL, ""),
    ("patch", GROUP, PLURAL, ""),
    ("patch", GROUP, PLURAL, "status"),
    ("get", "", "services", "proxy"),
)
SELECTED = (("podmonitors", "podMonitorSelector"), ("servicemonitors", "serviceMonitorSelector"))


def of_the_cluster(namespace: str, context: str, kubeconfig: str) -> Iterator[Found]:
    """Every check, in the order in which one depends on another."""
    try:
        target = ClusterTarget.connect(namespace, context, kubeconfig, everywhere=not namespace)
    except CommandError as error:
        yield Found("kubeconfig", FAIL, str(error))
        return
    client = target.client
    try:
        version = client.call("GET", "/version")
    except KubeError as error:
        yield Found("API server", FAIL, str(error), f"look at the kubeconfig and its context; {OR_LOCAL}")
        return
    yield Found("API server", OK, f"{client.host}, {version.get('gitVersion', '')}")
    installed = list(_definition(client))
    yield from installed
    yield from _rights(client, namespace)
    yield from _pods(client)
    yield from _leases(client)
    yield from _controller(target)
    yield from _selectors(client)
    if not any(one.verdict == FAIL for one in installed):
        yield from _models(target)


def _asked(client: Any, path: str, query: Json | None = None) -> list[Json] | KubeError:
    """Items of a list, or why there are none to be had."""
    try:
        found: list[Json] = client.call("GET", path, query=query)["items"]
    except KubeError as error:
        return error
    return found


def _definition(client: Any) -> Iterator[Found]:
    try:
        fields = lacking(client.call("GET", PATH))
    except KubeError as error:
        if error.status == NOT_FOUND:
            yield Found("CRD", FAIL, f"{NAME} is not installed", "helm install apparate charts/apparate")
        else:
            yield Found("CRD", WARN, str(error))
        return
    if fields:
        told = f"does not know {', '.join(fields[:5])}" + (f" and {len(fields) - 5} more" if len(fields) > 5 else "")
        yield Found("CRD", FAIL, told, "upgrade the chart with crds.install=true, or this command is newer than it")
    else:
        yield Found("CRD", OK, f"{NAME} has all of this version's fields")


def _rights(client: Any, namespace: str) -> Iterator[Found]:
    """What this user may do."""
    lacks = []
    for verb, group, resource, part in RIGHTS:
        asked = {"verb": verb, "group": group, "resource": resource, "subresource": part, "namespace": namespace}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        try:
            allowed = bool(client.call("POST", REVIEWS, body=body)["status"].get("allowed"))
        except KubeError as error:
            yield Found("your rights", WARN, str(error))
            return
        if not allowed:
            lacks.append(f"{verb} {resource}" + (f"/{part}" if part else ""))
    if lacks:
        step = "ask for the ClusterRole that ends in -admin; history, what-if and record need get services/proxy"
        yield Found("your rights", WARN, f"you may not {', '.join(lacks)}", step)
    else:
        yield Found("your rights", OK, "you may see and change models, and ask the controller")


def _pods(client: Any) -> Iterator[Found]:
    """Pods of operator, controller and Redis."""
    pods = _asked(client, "/api/v1/pods", {"labelSelector": f"{PART},app.kubernetes.io/component"})
    if isinstance(pods, KubeError):
        yield Found("pods", WARN, str(pods))
        return
    by_part: dict[str, list[Json]] = {}
    for pod in pods:
        by_part.setdefault(pod["metadata"]["labels"]["app.kubernetes.io/component"], []).append(pod)
    for part in ("operator", "controller"):
        by_part.setdefault(part, [])
    for part, found in sorted(by_part.items()):
        if part == "worker" or "test" in part:
            continue
        wrong = [f"{pod['metadata']['name']}: {why}" for pod in found if (why := _waits(pod))]
        if not found:
            yield Found(f"pods of {part}", FAIL, "there are none", "is the chart installed, with replicas?")
        elif wrong:
            verdict = FAIL if len(wrong) == len(found) else WARN
            yield Found(f"pods of {part}", verdict, "; ".join(wrong), "kubectl describe pod, kubectl logs")
        else:
            yield Found(f"pods of {part}", OK, f"{len(found)} ready")


def _waits(pod: Json) -> str:
    """Why a pod is not ready; empty when it is, or has ended as it should."""
    status = pod.get("status", {})
    if status.get("phase") == "Succeeded" or pod["metadata"].get("deletionTimestamp"):
        return ""
    for one in status.get("containerStatuses", []):
        waiting = one.get("state", {}).get("waiting")
        if waiting:
            return f"{waiting.get('reason', 'waiting')} {waiting.get('message', '')}".strip()
    conditions: dict[str, Json] = {one["type"]: one for one in status.get("conditions", [])}
    if conditions.get("Ready", {}).get("status") == "True":
        return ""
    scheduled = conditions.get("PodScheduled", {})
    return str(scheduled.get("message") or conditions.get("Ready", {}).get("message") or "not ready")


def _leases(client: Any) -> Iterator[Found]:
    """Whether somebody leads, and whether the leader's clock is ours."""
    leases = _asked(client, "/apis/coordination.k8s.io/v1/leases")
    if isinstance(leases, KubeError):
        yield Found("leaders", WARN, str(leases))
        return
    for lease in leases:
        name, spec = lease["metadata"]["name"], lease.get("spec") or {}
        if "apparate" not in name or not spec.get("renewTime"):
            continue
        age = (datetime.now(UTC) - datetime.fromisoformat(spec["renewTime"])).total_seconds()
        holder = spec.get("holderIdentity") or ""
        if age < -SKEW_S:
            told = f"renewed {-age:.0f} s in the future by {holder}"
            yield Found(f"lease {name}", WARN, told, "let NTP set the clocks of nodes and of this machine")
        elif not holder or age > 2 * DURATION_S:
            told = f"last renewed {age:.0f} s ago" + (f" by {holder}" if holder else ", given away")
            yield Found(f"lease {name}", FAIL, told, "no process leads, or its clock is behind: see its pods")
        else:
            yield Found(f"lease {name}", OK, f"{holder} leads")


def _controller(target: ClusterTarget) -> Iterator[Found]:
    """What the controller says of itself: Redis, its rights, its models."""
    try:
        yield from of_readiness(json.loads(target.controllers("/readyz")))
    except KubeError as error:
        said = str(error)
        start = said.find('{"status"')
        try:
            yield from of_readiness(json.loads(said[start:]) if start >= 0 else json.loads(""))
        except ValueError:
            yield Found("controller", WARN, f"cannot be asked through the API server: {said}")
    except (CommandError, ValueError) as error:
        yield Found("controller", WARN, str(error))


def _selectors(client: Any) -> Iterator[Found]:
    """Whether a Prometheus of the Prometheus operator takes our monitors: a label it wants is forgotten often."""
    servers = _asked(client, f"{MONITORING}/prometheuses")
    if isinstance(servers, KubeError):
        return  # no Prometheus operator here, or none of this user's business
    for plural, selector in SELECTED:
        ours = _asked(client, f"{MONITORING}/{plural}", {"labelSelector": PART})
        if isinstance(ours, KubeError) or not ours:
            continue
        for one in ours:
            if not any(_takes(server["spec"].get(selector), one) for server in servers):
                wanted = [server["spec"].get(selector) for server in servers]
                name = f"{one['metadata']['namespace']}/{one['metadata']['name']}"
                step = "set the chart's monitoring labels (values: monitoring.labels)"
                yield Found(f"{plural} {name}", WARN, f"no Prometheus selects it; they want {json.dumps(wanted)}", step)
                break
        else:
            yield Found(plural, OK, f"{len(ours)} are selected")


def _takes(selector: Json | None, one: Json) -> bool:
    """Whether a selector takes an object; none takes nothing, an empty one everything."""
    if selector is None:
        return False
    labels = one["metadata"].get("labels") or {}
    return all(labels.get(name) == value for name, value in (selector.get("matchLabels") or {}).items())


def _models(target: ClusterTarget) -> Iterator[Found]:
    """What is not as one would wish of the models."""
    try:
        models = target.views()
    except (KubeError, CommandError) as error:
        yield Found("models", WARN, str(error))
        return
    for one in models:
        wrong = [c for c in one["conditions"] if c["status"] == "False"]
        if not one["conditions"]:
            yield Found(f"model {key_of(one)}", WARN, "no condition yet", "does the operator watch this namespace?")
        elif wrong:
            told = "; ".join(f"{c['type']}: {c['reason']}: {c.get('message', '')}" for c in wrong)
            yield Found(f"model {key_of(one)}", FAIL, told, f"kubectl describe eem {one['name']} -n {one['namespace']}")
        else:
            yield of_model(one, f"plan revision {one['plan']['revision']}; {why(one)}", in_a_cluster)
    if not models:
        yield Found("models", OK, "there are none yet")
