"""How a model is reached and kept up: Service, disruption budget, autoscaler, scraping."""

from __future__ import annotations

from apparate.contract.labels import WORKER
from apparate.contract.resource import EarlyExitModel
from apparate.contract.serving import Autoscaling, Target
from apparate_operator.kinds import AUTOSCALER, BUDGET, POD_MONITOR, SCALED_OBJECT, SERVICE, Json
from apparate_operator.manifests.common import Environment, child_name, manifest, selector

METRICS = {"waiting": "apparate_waiting_requests", "inFlight": "apparate_in_flight_requests"}


def service(model: EarlyExitModel) -> Json:
    """HTTP (with /metrics) and gRPC of the workers, under the model's own name."""
    protocols = model.spec.serving.protocols
    ports = [
        {"name": "http", "port": protocols.http.port, "targetPort": "http", "protocol": "TCP"},
        {"name": "grpc", "port": protocols.grpc.port, "targetPort": "grpc", "protocol": "TCP"},
    ]
    return manifest(
        SERVICE, model, child_name(model), WORKER, spec={"selector": selector(model, WORKER), "ports": ports}
    )


def disruption_budget(model: EarlyExitModel) -> Json:
    """One worker at a time may be taken away by drains of nodes."""
    return manifest(
        BUDGET,
        model,
        child_name(model, WORKER),
        WORKER,
        spec={"maxUnavailable": 1, "selector": {"matchLabels": selector(model, WORKER)}},
    )


def pod_monitor(model: EarlyExitModel, environment: Environment) -> Json:
    """Tells a Prometheus operator to scrape the workers, with the labels that it selects by."""
    endpoint = {"port": "http", "path": "/metrics", "interval": environment.scrape_interval, "honorLabels": True}
    spec: Json = {"selector": {"matchLabels": selector(model, WORKER)}, "podMetricsEndpoints": [endpoint]}
    chosen_by = dict(environment.monitor_labels)
    return manifest(POD_MONITOR, model, child_name(model, WORKER), WORKER, more_labels=chosen_by, spec=spec)


def autoscaler(model: EarlyExitModel, scaling: Autoscaling) -> Json:
    """A HorizontalPodAutoscaler or a ScaledObject, as asked."""
    return _keda(model, scaling) if scaling.kind == "keda" else _hpa(model, scaling)


def _hpa(model: EarlyExitModel, scaling: Autoscaling) -> Json:
    spec: Json = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": child_name(model, WORKER)},
        "minReplicas": scaling.min_replicas,
        "maxReplicas": scaling.max_replicas,
        "metrics": [_hpa_metric(target) for target in scaling.targets],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": scaling.scale_down_stabilization_seconds}},
    }
    return manifest(AUTOSCALER, model, child_name(model, WORKER), WORKER, spec=spec)


def _hpa_metric(target: Target) -> Json:
    if target.metric == "cpu":
        share = {"type": "Utilization", "averageUtilization": max(1, round(target.value * 100))}
        return {"type": "Resource", "resource": {"name": "cpu", "target": share}}
    wanted = {"type": "AverageValue", "averageValue": _milli(target.value)}
    return {"type": "Pods", "pods": {"metric": {"name": METRICS[target.metric]}, "target": wanted}}


def _milli(value: float) -> str:
    """A number as a quantity that comes back from the API as it was written."""
    return str(int(value)) if float(value).is_integer() else f"{round(value * 1000)}m"


def _keda(model: EarlyExitModel, scaling: Autoscaling) -> Json:
    stabilization = {"scaleDown": {"stabilizationWindowSeconds": scaling.scale_down_stabilization_seconds}}
    spec: Json = {
        "scaleTargetRef": {"name": child_name(model, WORKER)},
        "minReplicaCount": scaling.min_replicas,
        "maxReplicaCount": scaling.max_replicas,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": stabilization}},
        "triggers": [_trigger(model, scaling, target) for target in scaling.targets],
    }
    return manifest(SCALED_OBJECT, model, child_name(model, WORKER), WORKER, spec=spec)


def _trigger(model: EarlyExitModel, scaling: Autoscaling, target: Target) -> Json:
    if target.metric == "cpu":
        value = str(max(1, round(target.value * 100)))
        return {"type": "cpu", "metricType": "Utilization", "metadata": {"value": value}}
    labels = f'namespace="{model.metadata.namespace}",model="{model.metadata.name}"'
    return {
        "type": "prometheus",
        "metadata": {
            "serverAddress": scaling.prometheus_address or "",
            "query": f"sum({METRICS[target.metric]}{{{labels}}})",
            "threshold": f"{target.value:g}",
        },
    }
