"""Volumes for claims: `python -m apparate_cluster.node.volumes KUBECONFIG FOLDER`.

A provisioner as small as it can be: for each claim of the default StorageClass a folder of the node, as a
PersistentVolume, and when the claim is gone the folder goes too. There is one node, so every access mode can be had.
The size that a claim asks for is recorded, not enforced.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config

from .parts import PROVISIONER

LOOK_S = 0.5
TIMEOUT_S = 10
ASKED = "volume.kubernetes.io/storage-provisioner"  # set by the controller-manager on claims that wait for us
MADE = "pv.kubernetes.io/provisioned-by"


class Provisioner:
    """Makes and removes volumes below `folder`."""

    def __init__(self, core: Any, folder: Path) -> None:  # a CoreV1Api, whose types say that anything may be None
        self._core, self._folder = core, folder

    def step(self) -> None:
        """One look at all claims and volumes, and what follows from it."""
        volumes = self._core.list_persistent_volume(_request_timeout=TIMEOUT_S).items
        ours = [one for one in volumes if (one.metadata.annotations or {}).get(MADE) == PROVISIONER]
        known = {one.metadata.name for one in ours}
        for claim in self._core.list_persistent_volume_claim_for_all_namespaces(_request_timeout=TIMEOUT_S).items:
            waits = (claim.metadata.annotations or {}).get(ASKED) == PROVISIONER and not claim.spec.volume_name
            if waits and _name(claim) not in known and not claim.metadata.deletion_timestamp:
                self._make(claim)
        for volume in ours:
            if volume.status.phase == "Released" and volume.spec.persistent_volume_reclaim_policy == "Delete":
                self._remove(volume.metadata.name)

    def _make(self, claim: Any) -> None:
        place = self._folder / _name(claim)
        place.mkdir(exist_ok=True)
        place.chmod(0o777)  # the user of a pod may be anyone, and folders of the node know no fsGroup
        volume = {
            "metadata": {"name": _name(claim), "annotations": {MADE: PROVISIONER}},
            "spec": {
                "capacity": {"storage": claim.spec.resources.requests["storage"]},
                "accessModes": claim.spec.access_modes,
                "storageClassName": claim.spec.storage_class_name,
                "persistentVolumeReclaimPolicy": "Delete",
                "hostPath": {"path": str(place), "type": "Directory"},
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "name": claim.metadata.name,
                    "namespace": claim.metadata.namespace,
                    "uid": claim.metadata.uid,
                },
            },
        }
        self._core.create_persistent_volume(volume, _request_timeout=TIMEOUT_S)
        print(f"made {place} for {claim.metadata.namespace}/{claim.metadata.name}", flush=True)

    def _remove(self, name: str) -> None:
        if (self._folder / name).exists():
            shutil.rmtree(self._folder / name)
        self._core.delete_persistent_volume(name, _request_timeout=TIMEOUT_S)
        print(f"removed {name}", flush=True)


def _name(claim: Any) -> str:
    return f"pvc-{claim.metadata.uid}"


def main() -> None:
    """Look twice a second, until the process ends."""
    connect: Any = config.new_client_from_config  # has no types
    with connect(sys.argv[1]) as api:
        provisioner = Provisioner(client.CoreV1Api(api), Path(sys.argv[2]))
        while True:
            try:
                provisioner.step()
            except (client.ApiException, urllib3.exceptions.HTTPError) as error:  # the API server may be away
                print(f"will try again: {error}", flush=True)
                time.sleep(2)
            time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
