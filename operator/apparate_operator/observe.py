"""What people on call see of each model, as metrics: its conditions with their reasons, its workers."""

from __future__ import annotations

from collections.abc import Callable

from apparate.service.kube import KubeError, Right
from apparate.service.telemetry import Telemetry
from apparate_operator.conditions import OWN
from apparate_operator.kinds import Json
from apparate_operator.store import Key


class ModelMetrics:
    """The metrics of models, at the replica that acts. Event loop only."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._reasons: dict[Key, dict[str, str]] = {}

    def show(self, key: Key, status: Json) -> None:
        """Show what a model's status says now."""
        labels = {"namespace": key[0], "model": key[1]}
        known = self._reasons.setdefault(key, {})
        for one in status.get("conditions") or ():
            kind, reason = str(one.get("type")), str(one.get("reason"))
            if kind not in OWN:
                continue
            if known.get(kind, reason) != reason:
                self._telemetry.drop("apparate_model_condition", **labels, type=kind)
            known[kind] = reason
            holds = one.get("status") == "True"
            self._telemetry("apparate_model_condition", **labels, type=kind, reason=reason).set(holds)
        self._telemetry("apparate_model_replicas", **labels).set(status.get("replicas") or 0)
        self._telemetry("apparate_model_ready_replicas", **labels).set(status.get("readyReplicas") or 0)

    def forget(self, key: Key) -> None:
        """A model is gone."""
        if self._reasons.pop(key, None) is not None:
            self._telemetry.forget(namespace=key[0], model=key[1])

    def forget_all(self) -> None:
        """Another replica acts now."""
        for key in list(self._reasons):
            self.forget(key)


def count_errors(telemetry: Telemetry) -> Callable[[Right, KubeError | None], None]:
    """What counts calls on the Kubernetes API that failed, in the thread that made them."""

    def observe(right: Right, error: KubeError | None) -> None:
        if error is not None:
            telemetry("apparate_operator_kubernetes_errors", verb=right.verb, code=str(error.status)).inc()

    return observe
