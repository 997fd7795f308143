"""The kinds of objects that the operator reads and writes, and where the API has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from apparate.contract.conditions import OPERATOR
from apparate.contract.labels import MANAGED_BY, PREFIX
from apparate.contract.resource import GROUP, KIND, PLURAL, VERSION

Json = dict[str, Any]
SELECTOR = f"{MANAGED_BY}={OPERATOR}"
"""Everything that belongs to a model carries this label; nothing else is read."""
ATTEMPT = f"{PREFIX}/attempt"
TEMPLATE = f"{PREFIX}/template"
"""Annotation with the hash of the pod that a Job was made with."""
APPLIED = f"{PREFIX}/applied"
"""Annotation with the hash of the manifest that was last applied."""
HANDOVER = "apparate-autoscaler"
"""Field manager that keeps the number of workers between the operator's last word and the autoscaler's first."""


@dataclass(frozen=True)
class Kind:
    """One kind, as far as its path and its life go."""

    api: str
    name: str
    plural: str
    watched: bool = False
    """Changes come by watch; the others are only listed again from time to time."""
    pruned: bool = True
    """An object of a model that is not wanted any more is deleted."""
    group_needed: str = ""
    """An API that not every cluster has."""

    @property
    def group(self) -> str:
        """The API group; empty for the core."""
        return self.api.rpartition("/")[0]

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """The URL path of the collection, one object, or a part of it."""
        root = f"/apis/{self.api}" if "/" in self.api else f"/api/{self.api}"
        where = f"/namespaces/{namespace}" if namespace else ""
        return "/".join(part for part in (f"{root}{where}/{self.plural}", name, subresource) if part)


MODEL = Kind(f"{GROUP}/{VERSION}", KIND, PLURAL, watched=True, pruned=False)
JOB = Kind("batch/v1", "Job", "jobs", watched=True, pruned=False)
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments", watched=True)
POD = Kind("v1", "Pod", "pods", watched=True, pruned=False)
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps", watched=True, pruned=False)
CLAIM = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims", pruned=False)
SERVICE = Kind("v1", "Service", "services")
SECRET = Kind("v1", "Secret", "secrets")
"""Only where the operator itself hands on the URL of Redis: without that it has no rights on Secrets."""
ACCOUNT = Kind("v1", "ServiceAccount", "serviceaccounts")
ROLE = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
BINDING = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
AUTOSCALER = Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
SCALED_OBJECT = Kind("keda.sh/v1alpha1", "ScaledObject", "scaledobjects", group_needed="keda.sh")
POD_MONITOR = Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors", group_needed="monitoring.coreos.com")
EVENT = Kind("v1", "Event", "events", pruned=False)
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases", pruned=False)

CHILDREN = (
    JOB,
    DEPLOYMENT,
    POD,
    CONFIG_MAP,
    CLAIM,
    SERVICE,
    SECRET,
    ACCOUNT,
    ROLE,
    BINDING,
    BUDGET,
    AUTOSCALER,
    SCALED_OBJECT,
    POD_MONITOR,
)
WATCHED = tuple(kind for kind in (MODEL, *CHILDREN) if kind.watched)
BY_NAME = {kind.name: kind for kind in (MODEL, *CHILDREN)}
