"""A real Kubernetes control plane for tests, and what tests do with it.

Its own one by default (etcd, kube-apiserver, kube-controller-manager on loopback). A cluster that exists already is
used only when EEM_TEST_KUBECONFIG names its kubeconfig and the cluster itself says that tests may have it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config

from apparate_cluster import binaries
from support.eventually import eventually

ROOT = Path(__file__).resolve().parents[2]
OPT_IN = "EEM_TEST_KUBECONFIG"
OWNED = "apparate-tests"  # ConfigMap in kube-system by which a cluster's owner gives it to tests
START_WITHIN_S = 110
CRD_GONE_S = 120  # the API server gives itself a minute to delete the objects of a definition, and then begins anew


class KubectlFailed(RuntimeError):
    """kubectl ended with an error; the text is what it said on stderr."""


def missing() -> str:
    """What a control plane lacks on this machine; empty when one can start."""
    if os.environ.get(OPT_IN):
        return ""
    try:
        for name in binaries.CONTROL_PLANE:
            binaries.find(name)
    except binaries.MissingBinary as error:
        return str(error)
    return ""


class Cluster:
    """A cluster to test against, reached with full rights through `kubeconfig`."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self.kubeconfig = kubeconfig
        self.folder = folder
        self.bin = binaries.link_into(folder / "bin")
        self._clients: list[client.ApiClient] = []
        self._admin = self.api_client()
        self._installed: dict[str, tuple[dict[str, Any], str]] = {}

    @property
    def url(self) -> str:
        """Address of the API server."""
        return str(self._config()["clusters"][0]["cluster"]["server"])

    @property
    def environ(self) -> dict[str, str]:
        """Environment for programs that use this cluster: KUBECONFIG, PATH with `bin` first, a home of their own."""
        path = f"{self.bin}:{os.environ.get('PATH', '')}"
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": path, "HOME": str(self.folder)}

    def api_client(self, kubeconfig: Path | None = None) -> client.ApiClient:
        """A client with full rights, or with those of `kubeconfig`; closed at the end of the session."""
        made: client.ApiClient = config.new_client_from_config(str(kubeconfig or self.kubeconfig))
        self._clients.append(made)
        return made

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        """What kubectl prints. Raises KubectlFailed with what it says on stderr."""
        command = [str(self.bin / "kubectl"), *arguments]
        answer = subprocess.run(
            command, input=input, env=self.environ, capture_output=True, text=True, timeout=CRD_GONE_S + 30, check=False
        )
        if answer.returncode:
            raise KubectlFailed(answer.stderr.strip())
        return answer.stdout

    def apply(self, *manifests: dict[str, Any], namespace: str | None = None) -> str:
        """kubectl apply --server-side of the manifests."""
        scope = ["-n", namespace] if namespace else []
        text = yaml.safe_dump_all(manifests)
        return self.kubectl("apply", "--server-side", "--force-conflicts", *scope, "-f", "-", input=text)

    def get(self, *arguments: str) -> dict[str, Any]:
        """kubectl get ... -o json."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found

    def metrics(self) -> str:
        """The API server's own metrics, as Prometheus text."""
        return self.kubectl("get", "--raw", "/metrics")

    def kubeconfig_at(self, server: str) -> Path:
        """The same rights through another address of the API server, say that of a proxy on 127.0.0.1."""
        return self._write({**self._config(), "clusters": [self._cluster(server)]})

    def kubeconfig_of(self, namespace: str, service_account: str, *, server: str | None = None) -> Path:
        """The rights of a ServiceAccount, with a fresh token of one hour."""
        token = self.kubectl("create", "token", service_account, "-n", namespace, "--duration=1h").strip()
        known = self._config()
        user = {"name": known["users"][0]["name"], "user": {"token": token}}
        return self._write({**known, "clusters": [self._cluster(server)], "users": [user]})

    @contextlib.contextmanager
    def namespace(self, labels: dict[str, str] | None = None) -> Iterator[str]:
        """A fresh namespace whose default ServiceAccount exists; its deletion is asked for when the block ends."""
        name = f"test-{uuid.uuid4().hex[:8]}"
        core = client.CoreV1Api(self._admin)
        core.create_namespace({"metadata": {"name": name, "labels": labels or {}}})
        account = "metadata.name=default"
        eventually(lambda: core.list_namespaced_service_account(name, field_selector=account).items, within=30)
        try:
            yield name
        finally:
            core.delete_namespace(name)

    def delete_crds(self, *which: str) -> None:
        """Delete CustomResourceDefinitions, by name or selector, and wait until they are gone; there may be none."""
        self.kubectl("delete", "crd", *which, "--ignore-not-found", f"--timeout={CRD_GONE_S}s")

    def install_crd(self, crd: dict[str, Any]) -> None:
        """Apply a CustomResourceDefinition and wait until it serves; one that is being deleted is waited for."""
        name = crd["metadata"]["name"]
        eventually(lambda: "deletionTimestamp" not in self._crd(name).get("metadata", {}), within=CRD_GONE_S)
        if self._installed.get(name) == (crd, _version(self._crd(name))):
            return
        self.apply(crd)
        spec = crd["spec"]
        objects = client.CustomObjectsApi(self._admin)

        def serves() -> bool:
            try:
                objects.list_cluster_custom_object(spec["group"], spec["versions"][0]["name"], spec["names"]["plural"])
            except client.ApiException as error:
                if error.status in (404, 429):  # not yet established, or its storage is being made
                    return False
                raise
            return True

        eventually(serves, within=30)
        self._installed[name] = (crd, _version(self._crd(name)))

    def _crd(self, name: str) -> dict[str, Any]:
        """A CustomResourceDefinition as it is there; empty when it is not."""
        api = client.ApiextensionsV1Api(self._admin)
        answer = api.list_custom_resource_definition(field_selector=f"metadata.name={name}", _preload_content=False)
        items: list[dict[str, Any]] = json.loads(answer.data)["items"]
        return items[0] if items else {}

    def close(self) -> None:
        """Close the clients that it handed out."""
        for made in self._clients:
            made.close()

    def _config(self) -> dict[str, Any]:
        known: dict[str, Any] = yaml.safe_load(self.kubeconfig.read_text())
        return known

    def _cluster(self, server: str | None) -> dict[str, Any]:
        known = self._config()["clusters"][0]
        return {**known, "cluster": {**known["cluster"], **({"server": server} if server else {})}}

    def _write(self, content: dict[str, Any]) -> Path:
        path = self.folder / f"{uuid.uuid4().hex}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(content))
        return path


class ControlPlane(Cluster):
    """A cluster of the test's own: `pids` by process name, for tests that kill or freeze one."""

    def __init__(self, supervisor: subprocess.Popen[str], ready: dict[str, Any], folder: Path) -> None:
        super().__init__(Path(ready["kubeconfig"]), folder)
        self.supervisor = supervisor
        self.pids: dict[str, int] = ready["pids"]


@contextlib.contextmanager
def a_control_plane() -> Iterator[ControlPlane]:
    """A fresh control plane, gone when the block ends, or when this process does."""
    with tempfile.TemporaryDirectory(prefix="apparate-kube-") as scratch:
        folder = Path(scratch)
        errors = folder / "supervisor.log"
        with errors.open("w") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-m", "apparate_cluster", "--leash", "--folder", str(folder / "plane")],
                env={**os.environ, "PYTHONPATH": str(ROOT / "tools" / "cluster")},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        try:
            assert supervisor.stdout is not None
            ready = supervisor.stdout.readline()
            if not ready:
                raise AssertionError(errors.read_text().strip() or "the control plane's supervisor ended silently")
            plane = ControlPlane(supervisor, json.loads(ready), folder)
            with contextlib.closing(plane):
                yield plane
        finally:
            _end(supervisor)


def _version(crd: dict[str, Any]) -> str:
    return str(crd.get("metadata", {}).get("resourceVersion", ""))


def _end(supervisor: subprocess.Popen[str]) -> None:
    for pipe in (supervisor.stdin, supervisor.stdout):
        assert pipe is not None
        pipe.close()
    try:
        supervisor.wait(45)
    except subprocess.TimeoutExpired:
        supervisor.kill()  # the kernel then kills its children
        supervisor.wait()


class NotOurs(AssertionError):
    """The cluster was not given to tests."""


@contextlib.contextmanager
def an_existing_cluster(kubeconfig: Path) -> Iterator[Cluster]:
    """The cluster of a kubeconfig's current context. Raises NotOurs unless the cluster says that tests may have it."""
    with (
        tempfile.TemporaryDirectory(prefix="apparate-kube-") as folder,
        contextlib.closing(Cluster(kubeconfig, Path(folder))) as cluster,
    ):
        try:
            cluster.kubectl("get", "configmap", OWNED, "-n", "kube-system")
        except KubectlFailed as error:
            raise NotOurs(
                f"{OPT_IN}={kubeconfig}: tests create and delete cluster-wide objects, and this cluster is not marked "
                f"as theirs ({error}). To give it to them: kubectl create configmap {OWNED} -n kube-system"
            ) from None
        yield cluster


@contextlib.contextmanager
def a_cluster() -> Iterator[Cluster]:
    """What EEM_TEST_KUBECONFIG names, or a control plane of our own."""
    asked = os.environ.get(OPT_IN)
    with an_existing_cluster(Path(asked)) if asked else a_control_plane() as cluster:
        yield cluster
