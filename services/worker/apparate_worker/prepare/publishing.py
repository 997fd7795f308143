"""What a preparation in a cluster tells: progress and catalog, in a ConfigMap."""

from __future__ import annotations

import json
import time
from typing import Any

from apparate.catalog import RampCatalog
from apparate.contract.labels import PREPARE, REVISION, labels, owner
from apparate.contract.resource import EarlyExitModel
from apparate.service.kube import APPLY, KubeClient, KubeError
from apparate.service.telemetry import get_logger
from apparate_worker.prepare.progress import Step

MANAGER = "apparate-prepare"
EVERY_S = 10.0  # progress within a stage is told so often
WITHIN_S = 60.0  # a catalog that cannot be published for so long fails the Job, which is then tried again
log = get_logger(__name__)


class Publisher:
    """One ConfigMap, written by server-side apply, owned by the model."""

    def __init__(self, client: KubeClient, model: EarlyExitModel, name: str, revision: str) -> None:
        self._client, self._model, self._name, self._revision = client, model, name, revision
        self._told: tuple[str, float] | None = None

    def progress(self, step: Step) -> None:
        """Tell of a new stage at once, else now and then. A failure to tell is no failure of the preparation."""
        stage, now = step.stage, time.monotonic()
        if self._told is not None and self._told[0] == stage and now - self._told[1] < EVERY_S:
            return
        self._told = (stage, now)
        try:
            self._apply({"progress.json": json.dumps({"stage": stage, "share": round(step.share, 2)})})
        except KubeError as error:
            log.warning("progress was not told", error=str(error))

    def catalog(self, catalog: RampCatalog) -> None:
        """Publish the catalog. Raises KubeError when that does not work for a minute."""
        give_up = time.monotonic() + WITHIN_S
        while True:
            try:
                self._apply({"catalog.json": json.dumps(catalog.to_json())})
                return
            except KubeError as error:
                if time.monotonic() > give_up or not error.passing:
                    raise
                log.warning("the catalog is not published yet, tried again", error=str(error))
                time.sleep(1.0)

    def _apply(self, data: dict[str, str]) -> None:
        meta = self._model.metadata
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": self._name,
                "namespace": meta.namespace,
                "labels": labels(meta.name, meta.uid, PREPARE),
                "annotations": {REVISION: self._revision},
                "ownerReferences": [owner(self._model)],
            },
            "data": data,
        }
        path = f"/api/v1/namespaces/{meta.namespace}/configmaps/{self._name}"
        query = {"fieldManager": MANAGER, "force": "true"}
        self._client.call("PATCH", path, query=query, body=body, content_type=APPLY)
