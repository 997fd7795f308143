"""Whether the installed CustomResourceDefinition has this version's fields: the API drops others. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from apparate.contract.resource import GROUP, PLURAL, VERSION
from apparate.contract.schema import DIGEST, crd

Json = dict[str, Any]
NAME = f"{PLURAL}.{GROUP}"
PATH = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{NAME}"
AT_MOST = 5  # fields named in one message


@cache
def own_digest() -> str:
    """The digest of this version's schema."""
    return str(crd()["metadata"]["annotations"][DIGEST])


def lacking(installed: Json) -> tuple[str, ...]:
    """Fields of this version that an installed definition does not know; of those inside one another the outermost."""
    if (installed["metadata"].get("annotations") or {}).get(DIGEST) == own_digest():
        return ()
    return tuple(_missing(_schema(crd()), _schema(installed)))


def outdated(fields: tuple[str, ...]) -> str:
    """What to say of it; empty when nothing is lacking."""
    if not fields:
        return ""
    more = f" and {len(fields) - AT_MOST} more" if len(fields) > AT_MOST else ""
    return (
        f"CRDOutdated: the installed CustomResourceDefinition {NAME} does not know {', '.join(fields[:AT_MOST])}{more}"
        ", so the API drops them; upgrade it (the chart does with crds.install)"
    )


def _schema(definition: Json) -> Json:
    for version in definition["spec"]["versions"]:
        if version["name"] == VERSION:
            return dict(version["schema"]["openAPIV3Schema"])
    return {}


def _missing(wanted: Json, there: Json, at: str = "") -> Iterator[str]:
    """Properties of schema `wanted` that schema `there` has not."""
    for name, inner in wanted.get("properties", {}).items():
        path = f"{at}.{name}".lstrip(".")
        if name in there.get("properties", {}):
            yield from _missing(inner, there["properties"][name], path)
        elif not there.get("x-kubernetes-preserve-unknown-fields"):
            yield path
    if isinstance(wanted.get("items"), dict):
        yield from _missing(wanted["items"], there.get("items") or {}, f"{at}[]")
