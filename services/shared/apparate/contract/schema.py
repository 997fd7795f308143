"""The CustomResourceDefinition, made from the typed model: pydantic's JSON schema becomes a structural schema.

Structural schemas know no $ref, no null, no `additionalProperties: false` (unknown fields are pruned, or refused when
the client asks for strict validation), and have the exclusive limits of OpenAPI 3.0.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from apparate.contract.resource import GROUP, KIND, PLURAL, VERSION, EarlyExitModel

Schema = dict[str, Any]

DIGEST = f"{GROUP}/schema"
"""Annotation of the CRD: digest of its schema, by which an operator sees that the CRD is another version's."""
PRESERVE = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
KEPT = (
    "type",
    "format",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "default",
    "required",
    INT_OR_STRING,
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-validations",
)


def _condition(name: str, field: str) -> str:
    return f".status.conditions[?(@.type=='{name}')].{field}"


COLUMNS: tuple[tuple[str, str, str, str], ...] = (
    ("Ready", "string", _condition("Ready", "status"), "Whether the model serves."),
    ("Reason", "string", _condition("Ready", "reason"), "Why it does, or does not."),
    ("Replicas", "integer", ".status.readyReplicas", "Workers that serve."),
    ("Ramps", "integer", ".status.plan.activeRamps", "Active ramps."),
    ("Exit rate", "number", ".status.observed.exitRate", "Share of the requests that exit early (0..1)."),
    ("Loss", "number", ".status.observed.accuracyLoss.value", "Share of the answers that disagree (0..1)."),
    ("Saving", "number", ".status.observed.latencySavedRatio", "Share of a pass's time that answers leave earlier."),
    ("Age", "date", ".metadata.creationTimestamp", "Time since it was made."),
)


def crd() -> Schema:
    """The CustomResourceDefinition of EarlyExitModel."""
    schema = structural_schema()
    digest = hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()[:16]
    columns = [{"name": n, "type": t, "jsonPath": path, "description": text} for n, t, path, text in COLUMNS]
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.serving.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": columns,
    }
    names = {
        "kind": KIND,
        "listKind": f"{KIND}List",
        "plural": PLURAL,
        "singular": KIND.lower(),
        "shortNames": ["eem"],
        "categories": ["all", "apparate"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}", "annotations": {DIGEST: digest}},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def structural_schema() -> Schema:
    """The schema of an EarlyExitModel as the API server takes it."""
    found = EarlyExitModel.model_json_schema(by_alias=True)
    definitions = found.pop("$defs")
    root = _structural(found, definitions)
    fields = root["properties"]
    fields["apiVersion"] = {"type": "string", "description": f"{GROUP}/{VERSION}."}
    fields["kind"] = {"type": "string", "description": f"{KIND}."}
    fields["metadata"] = {"type": "object"}  # the API server's own
    fields["status"] = _without_defaults(fields["status"])
    return {**root, "required": ["spec"]}


def _structural(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    merged = _plain(schema, definitions)
    made: Schema = {key: merged[key] for key in KEPT if key in merged}
    if "const" in merged:
        made["enum"] = [merged["const"]]
    for limit in ("minimum", "maximum"):
        exclusive = f"exclusive{limit.capitalize()}"
        if exclusive in merged:
            made |= {limit: merged[exclusive], exclusive: True}
        elif limit in merged:
            made[limit] = merged[limit]
    if made.get("type") == "integer":
        made["format"] = "int64"
    if INT_OR_STRING in made:
        made["anyOf"] = merged["anyOf"]
    if "properties" in merged:
        made["properties"] = {name: _structural(one, definitions) for name, one in merged["properties"].items()}
        if isinstance(made.get("default"), dict):
            made["default"] = _without_nulls(made["default"]) if _has_rules(made) else {}
    if "items" in merged:
        made["items"] = _structural(merged["items"], definitions)
    more = merged.get("additionalProperties")
    if more is True:
        made[PRESERVE] = True
    elif isinstance(more, dict):
        made["additionalProperties"] = _structural(more, definitions)
    if description := _description(merged.get("description", ""), made):
        made = {"description": description, **made}
    return made


def _plain(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """`schema` with its $ref, and its one alternative to null, in place; what stands beside them wins."""
    beside = dict(schema)
    if "$ref" in beside:
        target = definitions[beside.pop("$ref").removeprefix("#/$defs/")]
        return {**_plain(target, definitions), **beside}
    options = [one for one in beside.get("anyOf", ()) if one.get("type") != "null"]
    if len(options) == 1:
        beside.pop("anyOf")
        if beside.get("default", 0) is None:
            del beside["default"]
        return {**_plain(options[0], definitions), **beside}
    return beside


def _has_rules(schema: Schema) -> bool:
    """Whether a rule looks at this part: the API server checks a default against it before it fills in the fields."""
    inside = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    return "x-kubernetes-validations" in schema or any(map(_has_rules, inside))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return value


def _description(text: str, schema: Mapping[str, Any]) -> str:
    """The description with default and limits of a plain value, for `kubectl explain`, which shows neither."""
    said = " ".join(text.split())
    facts = []
    if schema.get("default") not in (None, "", [], {}):
        facts.append(f"Default {json.dumps(schema['default'])}")
    if "minimum" in schema:
        facts.append(f"{'above' if 'exclusiveMinimum' in schema else 'at least'} {schema['minimum']}")
    if "maximum" in schema:
        facts.append(f"{'below' if 'exclusiveMaximum' in schema else 'at most'} {schema['maximum']}")
    if not facts:
        return said
    listed = ", ".join(facts)
    return f"{said} {listed[0].upper()}{listed[1:]}.".strip()


def _without_defaults(schema: Schema) -> Schema:
    """What is written to the status is what is read back: the API server fills nothing in there."""
    made = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in made:
        made["properties"] = {name: _without_defaults(one) for name, one in made["properties"].items()}
    if "items" in made:
        made["items"] = _without_defaults(made["items"])
    return made
