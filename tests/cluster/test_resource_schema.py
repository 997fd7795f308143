"""The EarlyExitModel resource in a real API server: what it takes and refuses, and that local mode does the same."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kubernetes import client

from apparate.contract.document import InvalidDocument, parse_documents
from apparate.contract.resource import GROUP, PLURAL, VERSION, EarlyExitModel
from apparate.contract.schema import structural_schema
from support.kube import KubectlFailed
from support.resources import LIMITS, MINIMAL, RULES, TAKEN, Case, an_object

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.fixture(scope="module")
def api(control_plane: Any) -> client.CustomObjectsApi:
    from apparate.contract.schema import crd

    control_plane.install_crd(crd())
    return client.CustomObjectsApi(control_plane.api_client())


def refusal(api: client.CustomObjectsApi, document: dict[str, Any]) -> str:
    """What the API server says against a new object, nothing is kept; empty when it takes it."""
    try:
        api.create_namespaced_custom_object(
            GROUP, VERSION, "default", PLURAL, document, dry_run="All", field_validation="Strict"
        )
    except client.ApiException as error:
        return str(json.loads(error.body)["message"])
    return ""


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in RULES.items()])
def test_each_rule_refuses_with_a_message_for_people(api: client.CustomObjectsApi, case: Case) -> None:
    assert case.refusal is not None
    assert case.refusal in refusal(api, case.document)


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in LIMITS.items()])
def test_each_limit_refuses(api: client.CustomObjectsApi, case: Case) -> None:
    assert case.refusal is not None
    assert case.refusal in refusal(api, case.document)


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in TAKEN.items()])
def test_what_is_within_the_rules_is_taken(api: client.CustomObjectsApi, case: Case) -> None:
    assert refusal(api, case.document) == ""


def places(schema: dict[str, Any], path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value can be set below `schema`; in lists, in the first item."""
    for name, inner in schema.get("properties", {}).items():
        yield (*path, name)
        yield from places(inner, (*path, name))
        if "items" in inner:
            yield from places(inner["items"], (*path, name, 0))


RICH = an_object(
    spec__autoscaling={"maxReplicas": 4, "targets": [{"metric": "cpu", "value": 0.5}]},
    spec__serving__gpu={"migProfile": "1g.10gb"},
    spec__serving__slo={"latencyMs": 5},
    spec__serving__resources={"limits": {"cpu": 2}},
    spec__serving__template={
        "tolerations": [{"key": "a"}],
        "env": [{"name": "A", "value": "1"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "imagePullSecrets": [{"name": "s"}],
    },
    spec__storage={"pvc": {"size": "1Gi", "accessModes": ["ReadWriteMany"]}},
)
PLACES = [("spec", *path) for path in places(structural_schema()["properties"]["spec"])]
VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, True, 0, 1, -1, 2, 0.5, 1.0, 10**7, "", "a", "1", "1Gi", "1g.10gb", "generation", "keda", "cpu"),
        *([], {}, ["a"], [1], {"a": "b"}, {"a": 1}, "x" * 70, "http://p", "a:b", "huggingface", "s3://b/k"),
    ]
)


def mutated(path: tuple[Any, ...], value: Any, document: dict[str, Any]) -> None:
    at: Any = document
    for part in path[:-1]:
        if isinstance(at, list):
            assume(len(at) > part)
        elif not isinstance(at, dict):
            assume(False)
        elif part not in at:
            at[part] = {}
        at = at[part]
    assume(isinstance(at, dict))
    at[path[-1]] = copy.deepcopy(value)  # the next change may set something in it


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=3))
def test_local_mode_and_the_api_server_agree_on_any_document(
    api: client.CustomObjectsApi, changes: list[tuple[tuple[Any, ...], Any]]
) -> None:
    document = json.loads(json.dumps(RICH))
    for path, value in changes:
        mutated(path, value, document)
    said = refusal(api, document)
    assume("local mode" not in said)  # relative paths and port 0 are refused only here, and tested above
    try:
        parse_documents(yaml.safe_dump(document), origin="model.yaml", base=ROOT)
        local = ""
    except InvalidDocument as error:
        local = str(error)
    assert bool(said) == bool(local), f"the API server says {said!r}, local mode says {local!r}"


def test_the_api_server_fills_in_the_defaults_of_the_typed_model(api: client.CustomObjectsApi) -> None:
    made = api.create_namespaced_custom_object(GROUP, VERSION, "default", PLURAL, MINIMAL, dry_run="All")
    typed = EarlyExitModel.model_validate(MINIMAL).spec
    assert made["spec"] == typed.model_dump(by_alias=True, exclude_none=True, mode="json")


def test_kubectl_refuses_a_misspelt_field(control_plane: Any, api: client.CustomObjectsApi) -> None:
    with pytest.raises(KubectlFailed, match=r'unknown field "spec\.bugdet"'):
        control_plane.kubectl("apply", "-f", "-", input=yaml.safe_dump(an_object(spec__bugdet={"accuracyLoss": 0.1})))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_is_applied(control_plane: Any, crd: Any, namespace: str, path: Path) -> None:
    control_plane.kubectl("apply", "-n", namespace, "-f", str(path))
    (document,) = parse_documents(path.read_text(), origin=path.name, base=path.parent)
    stored = control_plane.get("eem", document.model.metadata.name, "-n", namespace)
    assert EarlyExitModel.model_validate(stored).spec == document.model.spec


def test_there_are_examples_of_vision_text_and_generation() -> None:
    assert {path.stem for path in EXAMPLES} >= {"vision", "text", "generative"}
