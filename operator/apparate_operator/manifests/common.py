"""Names, labels and metadata of everything that is made for a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from apparate.contract.labels import COMPONENT, MODEL_LABEL, owner
from apparate.contract.labels import labels as shared_labels
from apparate.contract.resource import EarlyExitModel
from apparate_operator.kinds import APPLIED, SECRET, Json, Kind

PREPARED = "/prepared"
"""Where pods have the store of prepared models."""


@dataclass(frozen=True)
class Environment:
    """What is the same for all models: what the operator was told, and what the cluster offers."""

    worker_image: str
    redis_url: str = ""
    redis_secret: str = ""
    apis: frozenset[str] = frozenset()
    """API groups of the cluster."""
    tends_secrets: bool = False
    """Whether Secrets that an earlier setting made can be found and deleted: that takes rights on Secrets."""
    monitor_labels: tuple[tuple[str, str], ...] = ()
    """Labels by which a Prometheus selects what tells it to scrape."""
    scrape_interval: str = "15s"
    """How often it scrapes workers; empty: nothing tells it to."""
    warning: str = ""
    """What is wrong with the cluster, for the status of every model."""

    @property
    def openshift(self) -> bool:
        """Whether the cluster chooses the users that pods run as."""
        return "security.openshift.io" in self.apis

    @property
    def makes_secrets(self) -> bool:
        """Whether each model gets a Secret with the URL of Redis: there is one, and nobody else brings Secrets."""
        return bool(self.redis_url) and not self.redis_secret

    def has(self, kind: Kind) -> bool:
        """Whether there may be objects of a kind: the cluster has its API, and the operator has a use for it."""
        if kind is SECRET:
            return self.makes_secrets or self.tends_secrets
        return not kind.group_needed or kind.group_needed in self.apis


def child_name(model: EarlyExitModel, suffix: str = "") -> str:
    """The name of something made for a model. Models have at most 40 characters, so that all names fit into 63."""
    name = f"{model.metadata.name}-{suffix}" if suffix else model.metadata.name
    if len(name) > 63:
        raise ValueError(f"name {name} has {len(name)} characters, allowed are 63")
    return name


def selector(model: EarlyExitModel, component: str) -> dict[str, str]:
    """The labels that pods of one component have, and no others."""
    return {MODEL_LABEL: model.metadata.name, COMPONENT: component}


def labels(model: EarlyExitModel, component: str) -> dict[str, str]:
    """The labels of everything made for a model."""
    return shared_labels(model.metadata.name, model.metadata.uid, component)


def manifest(
    kind: Kind,
    model: EarlyExitModel,
    name: str,
    component: str,
    *,
    annotations: Mapping[str, str] | None = None,
    more_labels: Mapping[str, str] | None = None,
    **parts: Json | list[Json] | bool | str,
) -> Json:
    """An object that belongs to a model, with the hash of itself as an annotation."""
    body: Json = {
        "apiVersion": kind.api,
        "kind": kind.name,
        "metadata": {
            "name": name,
            "namespace": model.metadata.namespace,
            "labels": {**(more_labels or {}), **labels(model, component)},
            "annotations": dict(annotations or {}),
            "ownerReferences": [owner(model)],
        },
        **parts,
    }
    body["metadata"]["annotations"][APPLIED] = digest(body)
    return body


def digest(body: object) -> str:
    """A short hash of plain data."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
