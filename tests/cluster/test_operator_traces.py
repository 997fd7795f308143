"""Traces of the operator as a process: from the standard variables to a real receiver."""

from __future__ import annotations

import pytest

from support import kube
from support.eventually import eventually
from support.models_on_kubernetes import a_body
from support.operator import Hand, an_operator
from support.otlp import a_receiver

pytestmark = [pytest.mark.cluster]


def test_what_is_done_for_a_model_comes_as_spans(
    control_plane: kube.Cluster, namespace: str, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_receiver() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with an_operator(control_plane, namespace, lease_name="traces") as operator:
            operator.settle()
            hand.create(a_body())
            made = eventually(lambda: [one for one in collector.spans if "apply Job" in str(one.attributes)], within=30)
        span = made[0]
        assert (span.service, span.name, span.parent) == ("apparate-operator", "reconcile", "")
        told = span.attributes
        assert (told["apparate.namespace"], told["apparate.model"]) == (namespace, "resnet")
        assert (told["apparate.generation"], told["apparate.outcome"], told["apparate.ready"]) == (
            1,
            "done",
            "Preparing",
        )
        assert told["apparate.writes"] == len(told["apparate.written"].split(", ")) >= 2
