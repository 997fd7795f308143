"""Where models are: behind a controller's address (local mode) or in a cluster; both use the same words."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from datetime import UTC, datetime
from typing import Annotated, Any, Protocol

import typer

from apparate.cli.errors import BAD_INPUT, FAILED, CommandError
from apparate.cli.main import PLUGIN

Json = dict[str, Any]
TIMEOUT_S = 5.0
DEFAULT_URL = "http://127.0.0.1:8070"  # where `apparate serve` puts the controller
MANAGER = "apparate-cli"
CONFLICTS = 5

Url = Annotated[
    str,
    typer.Option(
        envvar="APPARATE_CONTROLLER_URL",
        help=f"Address of the controller, as `apparate serve` prints it; {DEFAULT_URL} when nothing else is said.",
    ),
]
Namespace = Annotated[
    str, typer.Option("-n", "--namespace", help="Look in this namespace of a cluster; default: the context's.")
]
Everywhere = Annotated[bool, typer.Option("-A", "--all-namespaces", help="Look in all namespaces of a cluster.")]
Context = Annotated[str, typer.Option("--context", help="Use the cluster of this context of the kubeconfig.")]
Kubeconfig = Annotated[str, typer.Option("--kubeconfig", help="Use the cluster of this kubeconfig file.")]
Name = Annotated[str, typer.Argument(help="NAME or NAMESPACE/NAME of a model.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


class Target(Protocol):
    """What the commands ask of either place. Keys are namespace/name; all raise CommandError."""

    def views(self) -> list[Json]:
        """Every model, as the controller's HTTP API describes one."""

    def view(self, name: str) -> Json:
        """The model NAME or NAMESPACE/NAME."""

    def plans(self, key: str) -> list[Json]:
        """Plans that were in force before, newest first."""

    def pause(self, key: str, paused: bool) -> None:
        """Have adaptation stand still, or go on."""

    def roll_back(self, key: str, revision: int) -> Json:
        """Put an earlier plan in force; the new plan."""


def choose(
    ctx: typer.Context, url: str, namespace: str, context: str, kubeconfig: str, everywhere: bool = False
) -> Target:
    """The cluster when the command is kubectl's plugin or an option names one, else the controller at `url`."""
    in_cluster = bool(namespace or context or kubeconfig or everywhere)
    if ctx.find_root().info_name == PLUGIN or in_cluster:
        given = ctx.get_parameter_source("url")
        if in_cluster and given is not None and given.name == "COMMANDLINE":
            raise CommandError("--url is for local mode: leave it away, or the options of a cluster", BAD_INPUT)
        return ClusterTarget.connect(namespace, context, kubeconfig, everywhere)
    return LocalTarget(url or DEFAULT_URL)


def key_of(one: Json) -> str:
    """namespace/name of a model as it is described."""
    return f"{one.get('namespace', 'default')}/{one.get('name', '')}"


class LocalTarget:
    """The controller at an address."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise CommandError(f"--url is {url!r}, must start with http:// or https://", BAD_INPUT)
        self._url = url.rstrip("/")

    def views(self) -> list[Json]:
        """See Target."""
        return [self._call("GET", f"/v1/models/{key}") for key in self._names()]

    def view(self, name: str) -> Json:
        """See Target."""
        known = self._names()
        wanted = [key for key in known if name in (key, key.partition("/")[2])]
        if len(wanted) != 1:
            what = f"{name} is in {', '.join(wanted)}" if wanted else f"there is no model {name}"
            raise CommandError(f"{what}; models are: {', '.join(known) or 'none'}", BAD_INPUT)
        found: Json = self._call("GET", f"/v1/models/{wanted[0]}")
        return found

    def plans(self, key: str) -> list[Json]:
        """See Target."""
        found: list[Json] = self._call("GET", f"/v1/models/{key}/plans")
        return found

    def pause(self, key: str, paused: bool) -> None:
        """See Target."""
        self._call("PUT", f"/v1/models/{key}/paused", {"paused": paused})

    def roll_back(self, key: str, revision: int) -> Json:
        """See Target."""
        found: Json = self._call("POST", f"/v1/models/{key}/rollback", {"revision": revision})
        return found

    def _names(self) -> list[str]:
        found = self._call("GET", "/v1/models")
        return [key_of(one) for one in (found["models"] if isinstance(found, dict) else found)]

    def _call(self, method: str, path: str, body: Json | None = None) -> Any:
        request = urllib.request.Request(self._url + path, method=method)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                told = _detail(error.read())
            status = BAD_INPUT if error.code == 409 else FAILED
            said = told or f"the controller answered {error.code} {error.reason}"
            raise CommandError(said if error.code == 409 else f"{self._url}{path}: {said}", status) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise CommandError(
                f"no controller at {self._url}: {reason}; is `apparate serve` running? (--url)", FAILED
            ) from None


def _detail(text: bytes) -> str:
    try:
        detail = json.loads(text)["detail"]
    except (ValueError, KeyError, TypeError):
        return ""
    return detail if isinstance(detail, str) else ""


class ClusterTarget:
    """The EarlyExitModels of a cluster."""

    def __init__(self, client: Any, namespace: str) -> None:
        self._client, self._namespace = client, namespace

    @classmethod
    def connect(cls, namespace: str, context: str, kubeconfig: str, everywhere: bool) -> ClusterTarget:
        """By a kubeconfig, as kubectl would. Raises InvalidKubeconfig."""
        try:
            from apparate.service.kube import from_kubeconfig

            client, own = from_kubeconfig(kubeconfig, context)
        except ModuleNotFoundError as error:
            hint = "run: pip install 'apparate[kubectl]'"
            raise CommandError(f"a cluster needs the package {error.name}, not installed; {hint}") from None
        return cls(client, "" if everywhere else namespace or own)

    def views(self) -> list[Json]:
        """See Target."""
        from apparate.service.kube import NOT_FOUND, KubeError, models_path

        try:
            found = self._client.call("GET", models_path(self._namespace))
        except KubeError as error:
            if error.status != NOT_FOUND:
                raise
            raise CommandError("this cluster has no EarlyExitModels; install the chart first") from None
        return [described(thing) for thing in found["items"]]

    def view(self, name: str) -> Json:
        """See Target."""
        return described(self._get(name))

    def plans(self, key: str) -> list[Json]:
        """See Target."""
        from apparate.contract.rollback import history_with

        status = self._get(key).get("status", {})
        in_force = int((status.get("plan") or {}).get("revision", 0))
        return history_with(status.get("history", []), None, in_force)

    def pause(self, key: str, paused: bool) -> None:
        """See Target."""
        self._patch(key, "", {"spec": {"adaptation": {"paused": paused}}})

    def roll_back(self, key: str, revision: int) -> Json:
        """See Target."""
        from apparate.service.kube import CONFLICT, KubeError

        for _ in range(CONFLICTS):
            thing = self._get(key)
            plan, history = rollback_of(thing, revision)
            version = thing["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "status": {"plan": plan, "history": history}}
            try:
                self._patch(key, "/status", body)
                return plan
            except KubeError as error:
                if error.status != CONFLICT:
                    raise
        raise CommandError(f"{key} changed {CONFLICTS} times meanwhile; try again")

    def _get(self, name: str) -> Json:
        from apparate.service.kube import NOT_FOUND, KubeError, model_path

        namespace, _, short = name.rpartition("/")
        try:
            found: Json = self._client.call("GET", model_path(namespace or self._namespace or "default", short))
        except KubeError as error:
            if error.status != NOT_FOUND:
                raise
            known = ", ".join(key_of(one) for one in self.views()) or "none"
            raise CommandError(f"there is no model {name}; models are: {known}", BAD_INPUT) from None
        return found

    def _patch(self, key: str, part: str, body: Json) -> None:
        from apparate.service.kube import MERGE, model_path

        path = model_path(*key.split("/")) + part
        self._client.call("PATCH", path, query={"fieldManager": MANAGER}, body=body, content_type=MERGE)


def described(thing: Json) -> Json:
    """An object in the words of the controller's HTTP API, as far as its status tells."""
    meta, spec, status = thing["metadata"], thing.get("spec", {}), thing.get("status") or {}
    plan = status.get("plan") or {"revision": 0, "ramps": []}
    observed, conditions = status.get("observed") or {}, status.get("conditions", [])
    ready: Json = next((one for one in conditions if one["type"] == "Ready"), {})
    loss = observed.get("accuracyLoss") or {}
    does = {one["ramp"]: one for one in observed.get("ramps", [])}
    return {
        "namespace": meta["namespace"],
        "name": meta["name"],
        "ready": ready.get("status") == "True",
        "reason": "" if ready.get("status") == "True" else ready.get("message", "nothing is known of it yet"),
        "paused": bool(spec.get("adaptation", {}).get("paused")),
        "plan": {"ramps": [], **plan},
        "delivery": status.get("delivery") or {},
        "observed": {
            "samples": loss.get("samples", 0),
            "loss": loss.get("value"),
            "lossUpper": loss.get("upper"),
            "saving": observed.get("latencySavedRatio"),
            "exitRate": observed.get("exitRate"),
        },
        "ramps": [{**does.get(one["ramp"], {}), **one} for one in plan.get("ramps", [])],
        "decisions": [{name: plan.get(name, "") for name in ("reason", "message")}] if plan["revision"] else [],
        "conditions": conditions,
    }


def rollback_of(thing: Json, revision: int) -> tuple[Json, list[Json]]:
    """(plan, history) that put the plan `revision` of an object's history in force again. Raises CommandError."""
    from apparate.contract.resource import PlanStatus
    from apparate.contract.rollback import NoSuchPlan, earlier, history_with, rolled_back
    from apparate.contract.status import bounded
    from apparate.plan import revision_after

    status = thing.get("status") or {}
    current, history = status.get("plan") or {"revision": 0}, status.get("history", [])
    digest, in_force = (status.get("catalog") or {}).get("digest", ""), bounded(int(current["revision"]))
    try:
        old = earlier(map(PlanStatus.model_validate, history), revision, in_force=in_force, catalog=digest)
    except NoSuchPlan as error:
        raise CommandError(str(error), BAD_INPUT) from None
    number = revision_after(in_force)
    new = rolled_back(old, number, datetime.now(UTC).isoformat(timespec="milliseconds"))
    return new.model_dump(mode="json", by_alias=True), history_with(history, current, number)
