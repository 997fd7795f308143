"""What a refusal of the API server means."""

from __future__ import annotations

import pytest

from apparate.service.kube import KubeError


@pytest.mark.parametrize(
    ("status", "said", "lacks"),
    [
        (403, 'services is forbidden: User "system:serviceaccount:a:b" cannot patch resource "services"', True),
        (403, 'roles "r" is forbidden: user "u" is attempting to grant RBAC permissions not currently held', True),
        (403, 'admission webhook "policy.example.com" denied the request: not on a Friday', False),
        (403, 'persistentvolumeclaims "c" is forbidden: only dynamically provisioned pvc can be resized', False),
        (403, 'pods "p" is forbidden: exceeded quota: gpu', False),
        (422, 'User "u" cannot be right', False),
    ],
)
def test_a_missing_right_is_told_from_what_admission_refuses(status: int, said: str, lacks: bool):
    assert KubeError(status, said).lacks_right is lacks
