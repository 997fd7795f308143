"""etcd, kube-apiserver and kube-controller-manager on loopback, in one folder of their own."""

from __future__ import annotations

import base64
import json
import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from . import binaries
from .certificates import Authority
from .processes import Child, EndedEarly, free_ports, until

READY_WITHIN_S = 90.0  # 4 s on an idle machine; a busy one gets its time
PORT_TRIES = 3
SERVICE_RANGE = "10.96.0.0/16"  # room for thousands of Services
NAMES = "DNS:localhost,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:10.96.0.1"


class ControlPlane:
    """Start, use `kubeconfig` (full rights), stop. Nothing is kept for the next start.

    `controllers` are those that the controller-manager runs, as its flag of that name says it.
    """

    names = NAMES  # that the API server's certificate is good for

    def __init__(self, folder: Path, *, controllers: str = "*") -> None:
        self.folder = self.logs = folder
        self.kubeconfig = folder / "admin.kubeconfig"
        self.children: list[Child] = []
        self.url = ""
        self._controllers, self._ours = controllers, False

    def start(self) -> None:
        """Start all three and return when the API server is ready. Raises MissingBinary, EndedEarly, TimeoutError."""
        for name in binaries.CONTROL_PLANE:
            binaries.find(name)
        self._take_folder()
        authority = Authority(self.folder / "pki")
        for chance in range(1, PORT_TRIES + 1):
            try:
                self._start_on(authority, *free_ports(4))
                return
            except EndedEarly as error:  # somebody else took the port meanwhile
                self.stop()
                if "address already in use" not in str(error) or chance == PORT_TRIES:
                    raise
            except BaseException:
                self.stop()
                raise

    def apiserver_flags(self, authority: Authority) -> Sequence[str]:
        """What a cluster with nodes adds to the API server's flags; of two for the same thing the later one counts."""
        return ()

    def user(self, authority: Authority, name: str, subject: str) -> Path:
        """The kubeconfig of a new user, who is `subject` ("/O=group/CN=user")."""
        path = self.folder / f"{name}.kubeconfig"
        path.touch(mode=0o600)
        certificate, key = authority.issue(name, subject, usage="clientAuth")
        path.write_text(kubeconfig(self.url, authority.certificate, certificate, key))
        return path

    def _take_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(self.folder.iterdir()):
            raise RuntimeError(f"{self.folder} is not empty: another control plane's, or not ours to remove later")
        self._ours = True

    def check(self) -> None:
        """Raise EndedEarly when one of the processes is gone."""
        for child in self.children:
            child.check()

    def stop(self) -> None:
        """Stop what runs, last started first."""
        while self.children:
            self.children.pop().stop()

    def clean(self) -> None:
        """Remove the folder, when it was empty before."""
        if self._ours:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _start_on(self, authority: Authority, api: int, client: int, peer: int, manager: int) -> None:
        self.url = f"https://127.0.0.1:{api}"
        self._start_etcd(client, peer)
        self._start_apiserver(authority, api, client)
        self._start_controller_manager(authority, manager)

    def _child(self, name: str, *flags: str) -> Child:
        child = Child(name, [binaries.find(name), *flags], log=self.logs / f"{name}.log")
        self.children.append(child)
        return child

    def _start_etcd(self, client: int, peer: int) -> None:
        data = self.folder / "etcd"
        shutil.rmtree(data, ignore_errors=True)
        etcd = self._child(
            "etcd",
            f"--data-dir={data}",
            "--log-level=warn",
            "--unsafe-no-fsync",  # what is in here need not outlive a crash of the machine
            "--quota-backend-bytes=4294967296",
            f"--listen-client-urls=http://127.0.0.1:{client}",
            f"--advertise-client-urls=http://127.0.0.1:{client}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
        )
        until(lambda: answers(f"http://127.0.0.1:{client}/health"), etcd, READY_WITHIN_S)

    def _start_apiserver(self, authority: Authority, port: int, etcd: int) -> None:
        certificate, key = authority.issue("apiserver", "/CN=kube-apiserver", usage="serverAuth", addresses=self.names)
        tokens_public, tokens_private = authority.signing_pair("service-accounts")
        admin = authority.issue("admin", "/O=system:masters/CN=admin", usage="clientAuth")
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(kubeconfig(self.url, authority.certificate, *admin))
        apiserver = self._child(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={port}",
            "--endpoint-reconciler-type=none",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            f"--cert-dir={self.folder / 'apiserver'}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={authority.certificate}",
            "--authorization-mode=Node,RBAC",
            "--anonymous-auth=false",
            "--allow-privileged=true",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={tokens_public}",
            f"--service-account-signing-key-file={tokens_private}",
            "--profiling=false",
            *self.apiserver_flags(authority),
        )
        trusted = ssl.create_default_context(cafile=str(authority.certificate))
        trusted.load_cert_chain(*map(str, admin))
        until(lambda: answers(f"{self.url}/readyz", trusted), apiserver, READY_WITHIN_S)

    def _start_controller_manager(self, authority: Authority, port: int) -> None:
        manager = self._child(
            "kube-controller-manager",
            f"--kubeconfig={self.user(authority, 'controller-manager', '/CN=system:kube-controller-manager')}",
            f"--controllers={self._controllers}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self.folder / 'controller-manager'}",
            "--authentication-skip-lookup=true",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={authority.folder / 'service-accounts.key'}",
            f"--root-ca-file={authority.certificate}",
            f"--cluster-signing-cert-file={authority.certificate}",
            f"--cluster-signing-key-file={authority.key}",
            "--kube-api-qps=500",  # the default of 20 makes garbage collection of many children take minutes
            "--kube-api-burst=1000",
            "--profiling=false",
        )
        insecure = ssl.create_default_context()
        insecure.check_hostname, insecure.verify_mode = False, ssl.CERT_NONE  # its own, self-signed, on loopback
        until(lambda: answers(f"https://127.0.0.1:{port}/healthz", insecure), manager, READY_WITHIN_S)


def answers(url: str, context: ssl.SSLContext | None = None) -> bool:
    """Whether a GET of `url` says 200."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if context:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=3) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def kubeconfig(url: str, authority: Path, certificate: Path, key: Path) -> str:
    """The text of a kubeconfig that has everything in itself."""

    def encoded(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    name = "apparate-local"
    cluster = {"server": url, "certificate-authority-data": encoded(authority)}
    user = {"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        },
        indent=2,
    )
