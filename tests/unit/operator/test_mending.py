"""Whose fields an object has after what others wrote into it was taken back."""

from __future__ import annotations

from typing import Any

import pytest

from apparate_operator.kinds import BINDING, CLAIM, DEPLOYMENT, HANDOVER, Json, Kind
from apparate_operator.lifecycle import Apply
from apparate_operator.mending import may_be_made_anew, taken_over

PORTS = {"f:ports": {'k:{"port":80}': {".": {}, "f:name": {}}}}


def an_entry(manager: str, operation: str = "Update", api: str = "v1", **more: Any) -> Json:
    return {"manager": manager, "operation": operation, "apiVersion": api, "fieldsType": "FieldsV1", **more}


OURS = an_entry("apparate-operator", "Apply", fieldsV1={"f:spec": {"f:selector": {}}})


def fields_of(entries: list[Json], manager: str) -> Json:
    return next((one["fieldsV1"] for one in entries if one["manager"] == manager), {})


def test_what_others_wrote_becomes_ours_and_their_metadata_stays_theirs():
    notes = {"f:annotations": {"f:team": {}}}
    other = an_entry("kubectl-edit", fieldsV1={"f:spec": PORTS, "f:metadata": notes})
    found = taken_over([OURS, other], "v1")
    assert found is not None
    assert fields_of(found, "apparate-operator") == {"f:spec": {"f:selector": {}, **PORTS}}
    assert fields_of(found, "kubectl-edit") == {"f:metadata": notes}


def test_what_an_autoscaler_or_a_controller_sets_stays_theirs():
    replicas = {"f:spec": {"f:replicas": {}}}
    scale = an_entry("kube-controller-manager", subresource="scale", fieldsV1=replicas)
    held = an_entry(HANDOVER, "Apply", fieldsV1=replicas)
    assert taken_over([OURS, scale, held], "v1") is None
    found = taken_over([OURS, scale, held, an_entry("kubectl-edit", fieldsV1={"f:spec": PORTS})], "v1")
    assert found is not None
    assert found[:2] == [scale, held]


def test_fields_of_another_version_of_the_api_are_not_ours_to_take():
    assert taken_over([OURS, an_entry("kubectl-edit", api="v2", fieldsV1={"f:spec": PORTS})], "v1") is None


def test_an_object_that_nobody_applied_becomes_ours_as_a_whole():
    found = taken_over([an_entry("before-first-apply", fieldsV1={"f:spec": PORTS})], "v1")
    assert found is not None
    assert [(one["manager"], one["operation"]) for one in found] == [("apparate-operator", "Apply")]


@pytest.mark.parametrize(
    ("kind", "selector", "anew"),
    [(DEPLOYMENT, "resnet", False), (DEPLOYMENT, "other", True), (BINDING, "resnet", True), (CLAIM, "other", False)],
    ids=lambda one: getattr(one, "name", str(one)),
)
def test_an_object_that_holds_pods_of_ours_or_prepared_models_is_never_made_anew(kind: Kind, selector: str, anew: bool):
    def a_body(name: str) -> Json:
        return {"metadata": {"name": "resnet"}, "spec": {"selector": {"matchLabels": {"model": name}}}}

    assert may_be_made_anew(Apply(kind, a_body("resnet")), a_body(selector)) is anew
