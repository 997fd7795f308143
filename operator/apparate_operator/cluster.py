"""The only file that calls the Kubernetes API: bounded threads, a timeout for each call, no hidden retry."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote

from apparate.contract import definition
from apparate.contract.conditions import OPERATOR as MANAGER
from apparate.contract.resource import EarlyExitModel
from apparate.service.kube import APPLY, CONFLICT, FORBIDDEN, NOT_FOUND, PATCH, KubeClient, KubeError
from apparate_operator.conditions import Told
from apparate_operator.kinds import CHILDREN, EVENT, MODEL, SELECTOR, Json, Kind
from apparate_operator.lifecycle import Apply
from apparate_operator.trimming import trim

T = TypeVar("T")
STRATEGIC = "application/strategic-merge-patch+json"  # adds to lists of owners; a merge patch would replace them
PAGE = 500  # objects of one answer to a list
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class NameTaken(RuntimeError):
    """An object that is not ours has the name that something of a model needs."""


class NameNotFreeYet(NameTaken):
    """The object is of a deleted model of the same name: it goes by itself."""


class Cluster:
    """The API server as the operator uses it. `wrote` hears of every write: kind and verb."""

    def __init__(
        self,
        client: KubeClient,
        namespaces: tuple[str, ...],
        threads: ThreadPoolExecutor,
        wrote: Callable[[str, str], None],
    ) -> None:
        self.client, self.threads = client, threads
        self._namespaces, self._wrote = namespaces, wrote

    async def everything(self, kind: Kind) -> tuple[list[Json], int]:
        """Everything of a kind that is ours, trimmed, and the resource version of the oldest list. Raises KubeError."""
        found: list[Json] = []
        versions = []
        for namespace in self._namespaces or (None,):
            items, version = await self._call(self._list, kind, namespace)
            found += items
            versions.append(version)
        return found, min(versions)

    async def probe(self, kind: Kind) -> None:
        """Raises KubeError when a kind cannot be read."""
        query = {"limit": 1} | ({} if kind is MODEL else {"labelSelector": SELECTOR})
        for namespace in self._namespaces or (None,):
            await self._call(self.client.call, "GET", kind.path(namespace), query=query)

    def _list(self, kind: Kind, namespace: str | None) -> tuple[list[Json], int]:
        query: dict[str, Any] = {"limit": PAGE}
        if kind is not MODEL:
            query["labelSelector"] = SELECTOR
        items: list[Json] = []
        while True:
            page = self.client.call("GET", kind.path(namespace), query=query)
            items += [trim(kind, one) for one in page.get("items") or ()]  # a thousand whole objects are 40 MB
            meta = page.get("metadata") or {}
            if not meta.get("continue"):
                return items, int(meta.get("resourceVersion") or 0)
            query["continue"] = meta["continue"]

    async def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        """One object, or None. Raises KubeError."""
        try:
            return await self._call(self.client.call, "GET", kind.path(namespace, name))
        except KubeError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    async def apply(self, wanted: Apply) -> Json:
        """The object after server-side apply of `wanted`. Raises KubeError."""
        namespace = wanted.body["metadata"]["namespace"]
        query = {"fieldManager": wanted.manager, "force": "true", "fieldValidation": "Strict"}
        path = wanted.kind.path(namespace, wanted.name)
        self._wrote(wanted.kind.name, "apply")
        return await self._call(self.client.call, "PATCH", path, query=query, body=wanted.body, content_type=APPLY)

    async def would_take(self, wanted: Apply) -> bool:
        """Whether the API would take the manifest for a new object: then it is not the manifest that it refuses.

        A full quota counts for nothing: the present object has a place in it. Raises KubeError when it did not answer.
        """
        body = {**wanted.body, "metadata": {**wanted.body["metadata"], "generateName": f"{wanted.name[:50]}-"}}
        del body["metadata"]["name"]
        path = wanted.kind.path(wanted.body["metadata"]["namespace"])
        try:
            await self._call(self.client.call, "POST", path, query={"dryRun": "All"}, body=body)
        except KubeError as error:
            if error.passing:
                raise
            return "exceeded quota" in str(error)
        return True

    async def set_managers(self, wanted: Apply, live: Json, entries: list[Json]) -> None:
        """Say whose the fields of an object are, unless it has changed since. Raises KubeError."""
        meta = live["metadata"]
        body = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]},
            {"op": "replace", "path": "/metadata/managedFields", "value": entries},
        ]
        self._wrote(wanted.kind.name, "managers")
        path, query = wanted.kind.path(meta["namespace"], wanted.name), {"fieldManager": MANAGER}
        await self._call(self.client.call, "PATCH", path, query=query, body=body, content_type=PATCH)

    async def adopt(self, kind: Kind, body: Json, labels: Json, owner: Json) -> Json:
        """An object after it was given back the labels and the owner that tie it to a model. Raises KubeError."""
        meta = body["metadata"]
        metadata = {"uid": meta["uid"], "labels": labels, "ownerReferences": [owner]}
        self._wrote(kind.name, "adopt")
        path, query = kind.path(meta["namespace"], meta["name"]), {"fieldManager": MANAGER}
        return await self._call(
            self.client.call, "PATCH", path, query=query, body={"metadata": metadata}, content_type=STRATEGIC
        )

    async def why_no_pods(self, namespace: str, uid: str) -> str:
        """What the newest Event of an object says about pods that could not be made; empty without one, or without
        the right to read Events. Raises KubeError."""
        query = {"fieldSelector": f"involvedObject.uid={uid},reason=FailedCreate", "limit": 50}
        try:
            found = await self._call(self.client.call, "GET", EVENT.path(namespace), query=query)
        except KubeError as error:
            if error.status == FORBIDDEN:
                return ""
            raise
        newest: Json = max(found.get("items") or (), key=lambda one: str(one.get("lastTimestamp") or ""), default={})
        return str(newest.get("message", ""))

    async def check_free(self, wanted: Apply, uid: str) -> bool:
        """Whether there is none of that name. Raises NameTaken when there is one that belongs to somebody else."""
        body = await self.get(wanted.kind, wanted.body["metadata"]["namespace"], wanted.name)
        if body is None:
            return True
        owners = body["metadata"].get("ownerReferences") or []
        if any(owner.get("uid") == uid for owner in owners):
            return False
        what, (own,) = f"{wanted.kind.name} {wanted.name}", wanted.body["metadata"]["ownerReferences"]
        if any((owner.get("kind"), owner.get("name")) == (own["kind"], own["name"]) for owner in owners):
            raise NameNotFreeYet(f"{what} is of a model of this name that was deleted, and goes by itself; waited for")
        raise NameTaken(
            f"{what} exists and does not belong to this model: rename or delete it, or give the model another name"
        )

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete that very object, and in the background what it owns. Nothing happens when it is gone."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        }
        self._wrote(kind.name, "delete")
        try:
            await self._call(self.client.call, "DELETE", kind.path(namespace, name), body=options)
        except KubeError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise

    async def report(self, namespace: str, name: str, uid: str, status: Json) -> Json:
        """The model after its status was given the operator's whole share. Raises KubeError."""
        body = {
            "apiVersion": MODEL.api,
            "kind": MODEL.name,
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "status": status,
        }
        query = {"fieldManager": MANAGER, "force": "true"}
        path = MODEL.path(namespace, name, "status")
        self._wrote(MODEL.name, "status")
        return await self._call(self.client.call, "PATCH", path, query=query, body=body, content_type=APPLY)

    async def tell(self, model: EarlyExitModel, told: Told) -> None:
        """Write a Kubernetes Event about a model. Raises KubeError."""
        meta, now = model.metadata, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{meta.name}.{uuid.uuid4().hex[:16]}", "namespace": meta.namespace},
            "involvedObject": {
                "apiVersion": MODEL.api,
                "kind": MODEL.name,
                "name": meta.name,
                "namespace": meta.namespace,
                "uid": meta.uid,
            },
            "type": told.kind,
            "reason": told.reason,
            "message": told.message,
            "source": {"component": MANAGER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        self._wrote(EVENT.name, "create")
        await self._call(self.client.call, "POST", EVENT.path(meta.namespace), body=body)

    async def apis(self) -> frozenset[str]:
        """The API groups of the cluster. Raises KubeError.

        One that not every cluster has counts only where it has what we make of it: a group may be there in part.
        """
        found = await self._call(self.client.call, "GET", "/apis")
        groups = {str(group["name"]) for group in found.get("groups", ())}
        for kind in CHILDREN:
            if kind.group_needed in groups and not await self.serves(kind):
                groups.discard(kind.group_needed)
        return frozenset(groups)

    async def lacks(self, kinds: Mapping[str, tuple[Kind, ...]]) -> list[str]:
        """What the operator may not do and has to: `{verbs: kinds}`, in sentences. Raises KubeError."""
        missing = []
        for verbs, of in kinds.items():
            for kind in of:
                for namespace in self._namespaces or ("",):
                    lacking = [verb for verb in verbs.split() if not await self._may(verb, kind, namespace)]
                    if lacking:
                        where = f"in namespace {namespace}" if namespace else "in all namespaces"
                        missing.append(f"may not {', '.join(lacking)} {kind.plural}.{kind.group or 'v1'} {where}")
        return missing

    async def _may(self, verb: str, kind: Kind, namespace: str) -> bool:
        plural, _, part = kind.plural.partition("/")
        asked: Json = {"verb": verb, "group": kind.group, "resource": plural}
        asked |= {"namespace": namespace} if namespace else {}
        asked |= {"subresource": part} if part else {}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        answer = await self._call(self.client.call, "POST", REVIEWS, body=body)
        return bool(answer.get("status", {}).get("allowed"))

    async def serves(self, kind: Kind) -> bool:
        """Whether the API server has a kind in the version that is used here. Raises KubeError."""
        try:
            found = await self._call(self.client.call, "GET", f"/apis/{quote(kind.api)}")
        except KubeError as error:
            if error.status == NOT_FOUND:
                return False
            raise
        return any(one.get("name") == kind.plural for one in found.get("resources", ()))

    async def definition(self) -> Json:
        """The installed CustomResourceDefinition of our models. Raises KubeError."""
        return await self._call(self.client.call, "GET", definition.PATH)

    async def _call(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.threads, lambda: call(*arguments, **named))
