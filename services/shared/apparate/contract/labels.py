"""Labels and annotations of what belongs to a model in a cluster; operator and preparation agree on them by this."""

from __future__ import annotations

from apparate.contract.conditions import OPERATOR

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
