"""Where workers have the URL of Redis from: it holds a password, so it is in a Secret and in no Deployment."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache

from apparate.contract.labels import PREFIX, WORKER
from apparate.contract.resource import EarlyExitModel
from apparate_operator.kinds import SECRET, Json
from apparate_operator.manifests.common import Environment, child_name, manifest

KEY = "url"
MARK = f"{PREFIX}/redis"
"""Annotation of worker pods with the fingerprint of the URL: one that has changed rolls the workers."""
ROUNDS = 200_000  # a tenth of a second, once a process: guessing a weak password by its fingerprint takes long


def secret(model: EarlyExitModel, environment: Environment) -> Json | None:
    """The Secret with the operator's own URL; none where there is no Redis, or where somebody else makes Secrets."""
    if not environment.makes_secrets:
        return None
    data = {KEY: base64.b64encode(environment.redis_url.encode()).decode()}
    return manifest(SECRET, model, secret_name(model, environment), WORKER, type="Opaque", data=data)


def secret_name(model: EarlyExitModel, environment: Environment) -> str:
    """The Secret that workers take the URL from; empty where there is no Redis."""
    if environment.makes_secrets:
        return child_name(model, "redis")
    return environment.redis_secret


def variables(model: EarlyExitModel, environment: Environment) -> list[Json]:
    """The worker's variable with the URL."""
    name = secret_name(model, environment)
    if not name:
        return []
    return [{"name": "EEM_WORKER_REDIS_URL", "valueFrom": {"secretKeyRef": {"name": name, "key": KEY}}}]


def marks(environment: Environment) -> dict[str, str]:
    """Annotations of worker pods."""
    return {MARK: _fingerprint(environment.redis_url)} if environment.makes_secrets else {}


@lru_cache(maxsize=4)
def _fingerprint(url: str) -> str:
    """A short hash that everybody who reads pods may see."""
    return hashlib.pbkdf2_hmac("sha256", url.encode(), MARK.encode(), ROUNDS, 8).hex()
