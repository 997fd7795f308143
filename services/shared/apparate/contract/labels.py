"""Labels, annotations and owner of what belongs to a model in a cluster, the same for operator and preparation."""

from __future__ import annotations

from typing import Any

from apparate.contract.conditions import OPERATOR
from apparate.contract.resource import EarlyExitModel

PREFIX = "apparate.dev"
MANAGED_BY = "app.kubernetes.io/managed-by"
COMPONENT = "app.kubernetes.io/component"
MODEL_LABEL = f"{PREFIX}/model"
"""Name of the model, on everything of it."""
UID_LABEL = f"{PREFIX}/uid"
"""uid of the model, on everything of it."""
REVISION = f"{PREFIX}/revision"
"""Annotation: which prepared revision an object is about."""
WORKER, PREPARE = "worker", "prepare"
"""Components."""


def labels(name: str, uid: str, component: str) -> dict[str, str]:
    """The labels of everything made for a model."""
    return {
        MODEL_LABEL: name,
        COMPONENT: component,
        "app.kubernetes.io/name": "apparate",
        "app.kubernetes.io/instance": name,
        MANAGED_BY: OPERATOR,
        UID_LABEL: uid,
    }


def owner(model: EarlyExitModel) -> dict[str, Any]:
    """The reference by which Kubernetes deletes what was made for a model together with it.

    Without blockOwnerDeletion: it would need the right to change finalizers of models on some clusters.
    """
    return {
        "apiVersion": model.api_version,
        "kind": model.kind,
        "name": model.metadata.name,
        "uid": model.metadata.uid,
        "controller": True,
    }
