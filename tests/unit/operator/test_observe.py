"""What people on call see of models: one series for each condition, with the reason of now."""

from __future__ import annotations

from typing import Any

from apparate.contract.metrics import OPERATOR
from apparate.service.telemetry import Telemetry
from apparate_operator.observe import ModelMetrics

KEY = ("shop", "m")


def a_status(*conditions: tuple[str, str, str], ready: int = 1) -> dict[str, Any]:
    told = [{"type": kind, "status": status, "reason": reason} for kind, status, reason in conditions]
    return {"conditions": told, "replicas": 2, "readyReplicas": ready}


def shown(telemetry: Telemetry) -> list[str]:
    lines = telemetry.render().decode().splitlines()
    return [line for line in lines if line.startswith("apparate_model_") and 'model="m"' in line]


def test_a_condition_has_one_series_with_the_reason_of_now() -> None:
    telemetry = Telemetry(OPERATOR)
    metrics = ModelMetrics(telemetry)
    metrics.show(KEY, a_status(("WorkersReady", "False", "CrashLoopBackOff"), ready=0))
    metrics.show(KEY, a_status(("WorkersReady", "True", "WorkersReady")))
    of = 'model="m",namespace="shop"'
    assert shown(telemetry) == [
        f'apparate_model_condition{{{of},reason="WorkersReady",type="WorkersReady"}} 1.0',
        f"apparate_model_replicas{{{of}}} 2.0",
        f"apparate_model_ready_replicas{{{of}}} 1.0",
    ]


def test_conditions_of_the_controller_are_its_own() -> None:
    telemetry = Telemetry(OPERATOR)
    ModelMetrics(telemetry).show(KEY, a_status(("AccuracyMet", "True", "WithinBudget")))
    assert not [line for line in shown(telemetry) if "condition" in line]


def test_a_model_that_is_gone_and_a_replica_that_does_not_act_show_nothing() -> None:
    telemetry = Telemetry(OPERATOR)
    metrics = ModelMetrics(telemetry)
    for key in (KEY, ("shop", "other")):
        metrics.show(key, a_status(("Ready", "True", "Ready")))
    metrics.forget(KEY)
    assert shown(telemetry) == [] and b'model="other"' in telemetry.render()
    metrics.forget_all()
    assert b'model="' not in telemetry.render()
