"""The CRD obeys the rules of structural schemas, and every part of it is bounded and described."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from apparate.contract.schema import COLUMNS, PRESERVE, crd, structural_schema

ROOT = structural_schema()


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}.*")


NODES = dict(nodes(ROOT))
STRUCTURAL = {
    *("type", "format", "description", "default", "enum", "pattern", "properties", "required", "items"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems"),
    *("maxProperties", "additionalProperties", "anyOf", PRESERVE, "x-kubernetes-int-or-string"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type", "x-kubernetes-validations"),
}


def test_only_words_of_structural_schemas_are_used():
    assert {word for node in NODES.values() for word in node} <= STRUCTURAL


def test_every_part_has_a_type_or_is_int_or_string():
    assert [path for path, node in NODES.items() if "type" not in node and "anyOf" not in node] == []


def test_properties_and_additional_properties_are_never_together():
    assert [path for path, node in NODES.items() if {"properties", "additionalProperties"} <= set(node)] == []


def test_keys_of_list_maps_are_required():
    for path, node in NODES.items():
        for key in node.get("x-kubernetes-list-map-keys", ()):
            assert key in node["items"]["required"], path


@pytest.mark.parametrize(("kind", "bound"), [("array", "maxItems"), ("string", "maxLength")], ids=["lists", "texts"])
def test_every_list_and_every_text_is_bounded(kind, bound):
    free = [p for p, n in NODES.items() if n.get("type") == kind and not {bound, "enum"} & set(n)]
    assert [path for path in free if path not in (".apiVersion", ".kind")] == []


def test_every_mapping_is_bounded():
    assert [p for p, n in NODES.items() if "additionalProperties" in n and "maxProperties" not in n] == []


def test_every_field_is_described():
    named = [p for p in NODES if p and not p.endswith(("[]", ".*")) and p != ".metadata"]
    assert [path for path in named if not NODES[path].get("description")] == []


def test_descriptions_tell_default_and_limits():
    loss = NODES[".spec.budget.accuracyLoss"]["description"]
    assert loss.endswith("Default 0.01, above 0, at most 0.5.")


def test_the_status_has_no_defaults():
    assert [path for path, node in NODES.items() if path.startswith(".status") and "default" in node] == []


def test_unknown_fields_are_kept_only_where_kubernetes_defines_the_shape():
    kept = {path.rpartition(".")[2] for path, node in NODES.items() if node.get(PRESERVE)}
    assert kept == {"affinity", "valueFrom", "volumes[]", "volumeMounts[]", "pod", "container"}


def test_columns_lead_to_fields_of_the_schema():
    for name, _, path, _ in COLUMNS:
        if "conditions" not in path and not path.startswith(".metadata"):
            assert path in NODES, name


def test_scale_leads_to_fields_of_the_schema():
    scale = crd()["spec"]["versions"][0]["subresources"]["scale"]
    assert set(scale.values()) <= set(NODES)


def test_the_schema_annotation_changes_only_with_the_schema():
    assert crd() == crd()
    assert len(crd()["metadata"]["annotations"]["apparate.dev/schema"]) == 16
