"""Who pods are in the API: one account for each component of a model, with rights on that model's own objects only."""

from __future__ import annotations

from apparate.contract.labels import PREPARE, WORKER
from apparate.contract.resource import GROUP, PLURAL, EarlyExitModel
from apparate_operator.kinds import ACCOUNT, BINDING, ROLE, Json
from apparate_operator.manifests.common import child_name, manifest


def worker_access(model: EarlyExitModel) -> list[Json]:
    """A worker may read and watch its own model, by name, and nothing else."""
    return _access(model, WORKER, [_own_model(model, "get", "list", "watch")])


def prepare_access(model: EarlyExitModel, catalog: str) -> list[Json]:
    """A preparation may read its own model and write the one ConfigMap it publishes its catalog in."""
    publish = {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": [catalog],
        "verbs": ["create", "get", "patch"],
    }
    return _access(model, PREPARE, [_own_model(model, "get"), publish])


def _own_model(model: EarlyExitModel, *verbs: str) -> Json:
    # `list` and `watch` with a resourceName are granted for requests with fieldSelector=metadata.name=NAME.
    return {
        "apiGroups": [GROUP],
        "resources": [PLURAL],
        "resourceNames": [model.metadata.name],
        "verbs": list(verbs),
    }


def _access(model: EarlyExitModel, component: str, rules: list[Json]) -> list[Json]:
    name = child_name(model, component)
    return [
        manifest(ACCOUNT, model, name, component, automountServiceAccountToken=False),
        manifest(ROLE, model, name, component, rules=rules),
        manifest(
            BINDING,
            model,
            name,
            component,
            roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            subjects=[{"kind": "ServiceAccount", "name": name, "namespace": model.metadata.namespace}],
        ),
    ]
