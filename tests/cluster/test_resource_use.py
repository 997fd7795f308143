"""What users and controllers do with an EarlyExitModel: explain, list, scale, write status, change it."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml
from kubernetes import client

from apparate.contract.resource import GROUP, PLURAL, VERSION
from support.kube import KubectlFailed
from support.resources import SHRUNK, STATUS, STATUS_REFUSED, TAKEN, an_object

pytestmark = pytest.mark.cluster


@pytest.fixture
def model(control_plane: Any, crd: Any, namespace: str) -> str:
    """Namespace with an EarlyExitModel `tiny`."""
    control_plane.apply(an_object(), namespace=namespace)
    return namespace


def write_status(control_plane: Any, namespace: str, status: dict[str, Any], manager: str = "test") -> dict[str, Any]:
    """The object after `manager` has applied its share of the status."""
    body = {**{k: v for k, v in an_object().items() if k != "spec"}, "status": status}
    found: dict[str, Any] = yaml.safe_load(
        control_plane.kubectl(
            *("apply", "--server-side", "--subresource=status", f"--field-manager={manager}", "-n", namespace),
            *("-o", "yaml", "-f", "-"),
            input=yaml.safe_dump(body),
        )
    )
    return found


def test_explain_reads_like_a_manual(control_plane: Any, crd: Any) -> None:
    from support.eventually import eventually

    def explained() -> str:
        try:
            return str(control_plane.kubectl("explain", "eem.spec.budget"))
        except KubectlFailed:  # its OpenAPI is published a moment after the resource is served
            return ""

    said = " ".join(eventually(explained, within=30).split())
    assert "What early exits may cost." in said
    assert "accuracyLoss <number>" in said
    assert (
        "Most of the released answers that may disagree with the model's own (0..0.5). Default 0.01, above 0, " in said
    )


def test_explain_tells_units(control_plane: Any, model: str) -> None:
    assert "in milliseconds" in control_plane.kubectl("explain", "eem.spec.serving.maxDelayMs")


def test_a_list_shows_what_matters(control_plane: Any, model: str) -> None:
    write_status(control_plane, model, STATUS)
    header, row = control_plane.kubectl("get", "eem", "-n", model).splitlines()
    assert " ".join(header.split()) == "NAME READY REASON REPLICAS RAMPS EXIT RATE LOSS SAVING AGE"
    assert row.split()[:-1] == ["tiny", "True", "Ready", "1", "1", "0.82", "0.0031", "0.41"]


def test_a_new_object_is_listed_without_a_status(control_plane: Any, model: str) -> None:
    assert control_plane.kubectl("get", "eem", "-n", model).splitlines()[1].startswith("tiny")


@pytest.mark.parametrize("category", ["all", "apparate"])
def test_it_is_found_by_category(control_plane: Any, model: str, category: str) -> None:
    assert "earlyexitmodel.apparate.dev/tiny" in control_plane.kubectl("get", category, "-n", model, "-o", "name")


def test_what_is_written_to_the_status_is_what_is_read_back(control_plane: Any, model: str) -> None:
    write_status(control_plane, model, STATUS)
    assert control_plane.get("eem", "tiny", "-n", model)["status"] == STATUS


@pytest.mark.parametrize(("path", "value", "message"), STATUS_REFUSED)
def test_a_status_that_cannot_be_is_refused(
    control_plane: Any, model: str, path: tuple[Any, ...], value: Any, message: str
) -> None:
    status = copy.deepcopy(STATUS)
    at: Any = status
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    with pytest.raises(KubectlFailed, match=re.escape(message)):
        write_status(control_plane, model, status)


def test_a_ramp_that_is_there_twice_is_refused(control_plane: Any, model: str) -> None:
    status = copy.deepcopy(STATUS)
    status["plan"]["ramps"] *= 2
    api = client.CustomObjectsApi(control_plane.api_client())
    body = {**control_plane.get("eem", "tiny", "-n", model), "status": status}
    with pytest.raises(client.ApiException, match="Duplicate value"):
        api.replace_namespaced_custom_object_status(GROUP, VERSION, model, PLURAL, "tiny", body)


def test_two_writers_share_the_conditions(control_plane: Any, model: str) -> None:
    ready = STATUS["conditions"][0]
    write_status(control_plane, model, {"conditions": [ready]}, "apparate-operator")
    found = write_status(
        control_plane, model, {"conditions": [{**ready, "type": "AccuracyMet"}]}, "apparate-controller"
    )
    assert {c["type"] for c in found["status"]["conditions"]} == {"Ready", "AccuracyMet"}
    with pytest.raises(KubectlFailed, match='conflict with "apparate-operator"'):
        write_status(control_plane, model, {"conditions": [{**ready, "status": "False"}]}, "apparate-controller")


def test_a_ramp_that_is_dropped_from_the_plan_disappears(control_plane: Any, model: str) -> None:
    write_status(control_plane, model, STATUS)
    plan = {**STATUS["plan"], "revision": 5, "ramps": [{"ramp": 0, "layer": "block1", "threshold": 0.1}]}
    found = write_status(control_plane, model, {**STATUS, "plan": plan})
    assert found["status"]["plan"] == plan


def test_scale_changes_the_number_of_workers(control_plane: Any, model: str) -> None:
    write_status(control_plane, model, STATUS)
    control_plane.kubectl("scale", "eem/tiny", "--replicas=5", "-n", model)
    assert control_plane.get("eem", "tiny", "-n", model)["spec"]["serving"]["replicas"] == 5
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{model}/{PLURAL}/tiny/scale"
    scale = yaml.safe_load(control_plane.kubectl("get", "--raw", path))
    assert scale["status"] == {"replicas": 2, "selector": "apparate.dev/model=tiny"}


def test_a_status_change_does_not_raise_the_generation(control_plane: Any, model: str) -> None:
    assert write_status(control_plane, model, STATUS)["metadata"]["generation"] == 1


def test_a_spec_of_200_kb_is_kept_whole(control_plane: Any, crd: Any, namespace: str) -> None:
    names = [f"class number {i:05d}, of many" for i in range(9_000)]
    control_plane.apply(an_object(spec__model__classes=names), namespace=namespace)
    stored = control_plane.get("eem", "tiny", "-n", namespace)
    assert sum(map(len, names)) > 200_000
    assert stored["spec"]["model"]["classes"] == names


def test_what_kubernetes_defines_is_kept_as_it_was_written(control_plane: Any, crd: Any, namespace: str) -> None:
    written = TAKEN["pod template"].document
    control_plane.apply(written, namespace=namespace)
    stored = control_plane.get("eem", "tiny", "-n", namespace)["spec"]["serving"]["template"]
    for part, value in written["spec"]["serving"]["template"].items():
        if part != "tolerations":  # those have a default of ours
            assert stored[part] == value


def test_the_claim_that_is_made_cannot_shrink(control_plane: Any, crd: Any, namespace: str) -> None:
    def claim(size: Any) -> dict[str, Any]:
        return an_object(spec__storage={"pvc": {"size": size}})

    size, smaller, said = SHRUNK
    control_plane.apply(claim("10Gi"), namespace=namespace)
    control_plane.apply(claim(size), namespace=namespace)
    with pytest.raises(KubectlFailed, match=re.escape(said)):
        control_plane.apply(claim(smaller), namespace=namespace)
