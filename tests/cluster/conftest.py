"""What several files of tests against a Kubernetes API use."""

from __future__ import annotations

from typing import Any

import pytest

from support import kube
from support.operator import Hand


@pytest.fixture
def hand(control_plane: kube.Cluster, namespace: str, crd: Any) -> Hand:
    """A person, and the parts of a cluster that do not run here, in a namespace of its own."""
    return Hand(control_plane, namespace)
