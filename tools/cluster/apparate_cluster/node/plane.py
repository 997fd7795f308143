"""The control plane of a cluster that has a node: also a scheduler, and an API server that pods and the node reach."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..certificates import Authority
from ..control_plane import ControlPlane
from . import network


class NodeControlPlane(ControlPlane):
    """`ControlPlane` with what the API server needs to speak with the kubelet, and with aggregated APIs."""

    names = f"{ControlPlane.names},IP:{network.NODE}"

    def apiserver_flags(self, authority: Authority) -> Sequence[str]:
        """See ControlPlane."""
        self.authority = authority
        caller, caller_key = authority.issue("apiserver-kubelet", "/O=system:masters/CN=apiserver", usage="clientAuth")
        front, front_key = authority.issue("front-proxy", "/CN=front-proxy", usage="clientAuth")
        return (
            "--bind-address=0.0.0.0",  # all of a network that nobody else is in
            f"--advertise-address={network.NODE}",
            "--endpoint-reconciler-type=lease",
            f"--kubelet-client-certificate={caller}",
            f"--kubelet-client-key={caller_key}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--requestheader-client-ca-file={authority.certificate}",
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={front}",
            f"--proxy-client-key-file={front_key}",
        )

    def kubeconfig_through(self, port: int, target: Path) -> None:
        """Write a kubeconfig with full rights for an address outside, on 127.0.0.1."""
        target.touch(mode=0o600)
        target.write_text(self.kubeconfig.read_text().replace(self.url, f"https://127.0.0.1:{port}"))
