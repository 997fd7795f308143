"""Which prepared model a spec asks for: operator and preparation agree on it by this."""

from __future__ import annotations

import hashlib
import json

from apparate.contract.resource import Spec


def revision(spec: Spec) -> str:
    """Eight hex digits that change when the model has to be prepared anew.

    Covers the model, its bootstrap data, what latencies were measured on, and which claim or bucket it is kept in; not
    budget, adaptation, replicas, or the Secrets that open the sources. A field that keeps its default does not count,
    so that a new version of this software with more fields prepares nothing anew.
    """
    serving, storage = spec.serving, spec.storage
    claim = storage.pvc.claim_name if storage.pvc is not None else None
    place = storage.s3.url.rstrip("/") if storage.s3 is not None else claim
    content = {
        "model": spec.model.model_dump(mode="json", exclude_defaults=True, exclude={"credentials", "classes"}),
        "bootstrap": spec.bootstrap.model_dump(mode="json", exclude_defaults=True, exclude={"credentials"}),
        "passes": serving.model_dump(
            mode="json", exclude_defaults=True, include={"max_batch", "threads", "device", "backend"}
        ),
        "gpu": spec.prepare.gpu.model_dump(mode="json", exclude_defaults=True) if spec.prepare.gpu else None,
        **({"store": place} if place else {}),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
