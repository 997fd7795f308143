"""Models of a cluster: their objects, and what the controller there tells through the API server."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from apparate.cli.errors import BAD_INPUT, CommandError
from apparate.cli.target import DEFAULT_URL, Json, asker, key_of, token

MANAGER = "apparate-cli"
CONFLICTS = 5
CONTROLLER = "app.kubernetes.io/part-of=apparate,app.kubernetes.io/component=controller"
TIMEOUT_S = 20.0  # what-if tries many budgets
OR_LOCAL = f"for a local `apparate serve` say --url {DEFAULT_URL}, or what it printed, instead of a cluster's options"


class ClusterTarget:
    """The EarlyExitModels of a cluster."""

    def __init__(self, client: Any, namespace: str) -> None:
        self.client, self._namespace = client, namespace

    @classmethod
    def connect(cls, namespace: str, context: str, kubeconfig: str, everywhere: bool) -> ClusterTarget:
        """By a kubeconfig, as kubectl would. Raises CommandError."""
        try:
            from apparate.service.kube import InvalidKubeconfig, from_kubeconfig

            client, own = from_kubeconfig(kubeconfig, context)
        except ModuleNotFoundError as error:
            hint = "run: pip install 'apparate[kubectl]'"
            raise CommandError(f"a cluster needs the package {error.name}, not installed; {hint}") from None
        except InvalidKubeconfig as error:
            raise CommandError(f"{error}; {OR_LOCAL}", BAD_INPUT) from None
        return cls(client, "" if everywhere else namespace or own)

    def views(self) -> list[Json]:
        """See Target."""
        from apparate.service.kube import NOT_FOUND, KubeError, models_path

        try:
            found = self._call("GET", models_path(self._namespace))
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

    def asked(self, key: str, question: str) -> Json:
        """See Target."""
        found: Json = json.loads(self.fetched(key, question))
        return found

    def fetched(self, key: str, question: str) -> bytes:
        """See Target. The API server forwards it to the controller, if this user may `get services/proxy`."""
        from apparate.service.kube import KubeError

        try:
            return self.controllers(f"/v1/models/{key}/{question}".rstrip("/"))
        except KubeError as error:
            raise CommandError(f"the controller could not be asked through the API server: {error}") from None

    def controllers(self, path: str) -> bytes:
        """What the controller answers at a path. Raises KubeError, and CommandError when there is not one of it."""
        return bytes(self.client.fetch(f"{self._controller()}{path}", timeout_s=TIMEOUT_S, headers=token()))

    def _call(self, method: str, path: str, **more: Any) -> Json:
        """What the API server answers. Raises KubeError, and CommandError when nothing can be asked of it at all."""
        from apparate.service.kube import UNAUTHORIZED, KubeError

        try:
            found: Json = self.client.call(method, path, **more)
            return found
        except KubeError as error:
            if error.status == 0:
                raise CommandError(f"{self.client.host} does not answer ({error}); {OR_LOCAL}") from None
            if error.status == UNAUTHORIZED:
                told = "log in again, or name another cluster by --context or --kubeconfig"
                raise CommandError(f"{self.client.host} does not know this kubeconfig's user: {told}") from None
            raise

    def _controller(self) -> str:
        """Where the API server forwards to the controller. Raises CommandError."""
        found = self._call("GET", "/api/v1/services", query={"labelSelector": CONTROLLER})["items"]
        if len(found) != 1:
            places = ", ".join(f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in found)
            what = f"{len(found)} controllers ({places})" if found else "no controller"
            raise CommandError(f"this cluster has {what}; forward a port to one and name it: --url")
        meta = found[0]["metadata"]
        return f"/api/v1/namespaces/{meta['namespace']}/services/{meta['name']}:http/proxy"

    def find(self, key: str) -> Json | None:
        """The object namespace/name, or None. Raises CommandError, and KubeError when it may not be read."""
        from apparate.service.kube import NOT_FOUND, KubeError, model_path

        try:
            return self._call("GET", model_path(*key.split("/")))
        except KubeError as error:
            if error.status != NOT_FOUND:
                raise
            return None

    def _get(self, name: str) -> Json:
        namespace, _, short = name.rpartition("/")
        found = self.find(f"{namespace or self._namespace or 'default'}/{short}")
        if found is None:
            known = ", ".join(key_of(one) for one in self.views()) or "none"
            raise CommandError(f"there is no model {name}; models are: {known}", BAD_INPUT)
        return found

    def _patch(self, key: str, part: str, body: Json) -> None:
        from apparate.service.kube import MERGE, model_path

        path = model_path(*key.split("/")) + part
        self._call("PATCH", path, query={"fieldManager": MANAGER}, body=body, content_type=MERGE)


def described(thing: Json) -> Json:
    """An object in the words of the controller's HTTP API, as far as its status tells."""
    from apparate.contract.pause import said_by
    from apparate.contract.resource import Adaptation, Budget

    meta, spec, status = thing["metadata"], thing.get("spec", {}), thing.get("status") or {}
    pause, budget = said_by(thing), Budget().model_dump(by_alias=True) | (spec.get("budget") or {})
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
        "paused": pause.paused,
        "pausedSince": pause.since if pause.paused else "",
        "pausedBy": pause.by if pause.paused else "",
        "budget": budget,
        "window": {"size": (spec.get("adaptation") or {}).get("window", Adaptation().window)},
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
    new = rolled_back(old, number, datetime.now(UTC).isoformat(timespec="milliseconds"), asker())
    return new.model_dump(mode="json", by_alias=True), history_with(history, current, number)
