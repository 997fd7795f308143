"""What an edit would cause in a cluster: by what the operator would make of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from apparate.cli.effects import Effect, effects
from apparate.cli.main import run
from apparate.contract.edits import Edit
from apparate.contract.resource import EarlyExitModel
from support.models_on_kubernetes import a_body


def between(live: dict[str, Any], **spec: Any) -> list[tuple[str, Effect]]:
    """(field, effect) of each edit that leads from an object to the same with other parts of the spec."""
    wanted = EarlyExitModel.model_validate({**live, "spec": {**live["spec"], **spec}})
    return [(one.edit.field, one.effect) for one in effects({**live, "status": {"anything": 1}}, wanted)]


def test_a_document_as_it_was_applied_has_no_edits() -> None:
    assert between(a_body()) == []


@pytest.mark.parametrize(
    ("spec", "field", "effect"),
    [
        ({"budget": {"accuracyLoss": 0.02}}, "spec.budget.accuracyLoss", Effect.NONE),
        ({"adaptation": {"paused": True}}, "spec.adaptation.paused", Effect.NONE),
        ({"serving": {"replicas": 3}}, "spec.serving.replicas", Effect.NONE),
        ({"serving": {"maxQueue": 7}}, "spec.serving.maxQueue", Effect.RESTARTS),
        ({"serving": {"image": "other:1"}}, "spec.serving.image", Effect.RESTARTS),
        ({"serving": {"maxBatch": 9}}, "spec.serving.maxBatch", Effect.PREPARES),
        ({"bootstrap": {"data": "pvc://other/data.npz"}}, "spec.bootstrap.data", Effect.PREPARES),
    ],
)
def test_each_edit_says_what_it_causes(spec: dict[str, Any], field: str, effect: Effect) -> None:
    live = a_body()
    whole = {name: {**live["spec"].get(name, {}), **part} for name, part in spec.items()}
    assert between(live, **whole) == [(field, effect)]


def test_edits_at_a_time_are_told_apart() -> None:
    found = between(a_body(), serving={"maxBatch": 9, "maxQueue": 7, "replicas": 2})
    assert dict(found) == {
        "spec.serving.maxBatch": Effect.PREPARES,
        "spec.serving.maxQueue": Effect.RESTARTS,
        "spec.serving.replicas": Effect.NONE,
    }


def test_edits_that_only_hold_together_are_judged_together() -> None:
    live = a_body()
    live["spec"]["autoscaling"] = {"minReplicas": 1, "maxReplicas": 2}
    found = between(live, autoscaling={"minReplicas": 5, "maxReplicas": 9})
    assert dict(found) == {
        "spec.autoscaling.minReplicas": Effect.NONE,  # at least as many as there may be at most, without the other
        "spec.autoscaling.maxReplicas": Effect.NONE,
    }


def test_an_edit_tells_its_values() -> None:
    assert str(Edit("spec.serving.maxBatch", 8, 16)) == "8 -> 16"


def test_where_torch_is_not_installed_models_are_not_loaded_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(a_body()))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(["check", "-f", str(tmp_path / "model.yaml"), "-o", "json"]) == 0
    row, serving = json.loads(capsys.readouterr().out)
    assert "start it again after any edit" in serving["told"]
    assert (row["verdict"], "pip install 'apparate[worker]'" in row["told"]) == ("skipped", True)
