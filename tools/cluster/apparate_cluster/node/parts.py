"""The processes of the node, and their configuration: each function returns a command, and writes what it reads."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from .. import binaries
from . import images, network
from .folder import Folder

NODE_NAME = "apparate"
GPU = "nvidia.com/gpu"
PROVISIONER = "apparate.dev/folder"
STORAGE_CLASS = "standard"
DNS_READY = 8181
PROXY_HEALTH = 10256
Command = Sequence[str | Path]

CONTAINERD = """version = 2
root = "{root}"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt"]  # it would make a folder in /opt
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  restrict_oom_score_adj = true  # a machine may withhold CAP_SYS_RESOURCE
  tolerate_missing_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{networks}"
"""

COREDNS = """.:53 {{
  bind {address}
  errors
  ready {address}:{ready}
  kubernetes cluster.local in-addr.arpa ip6.arpa {{
    kubeconfig {kubeconfig}
    pods insecure
    ttl 5
  }}
  cache 5
}}
"""


def containerd(folder: Folder) -> Command:
    """The container runtime, with images that outlive the cluster."""
    networks = folder.work / "cni"
    network.write_cni(networks)
    config = folder.work / "containerd.toml"
    config.write_text(
        CONTAINERD.format(
            root=folder.images,
            socket=folder.containerd,
            pause=images.PAUSE,
            snapshotter="overlayfs",
            plugins=network.PLUGINS,
            networks=networks,
        )
    )
    return ["containerd", "--config", config]


def kubelet(folder: Folder, kubeconfig: Path, authority: Path) -> Command:
    """The node's agent. Its folder is /var/lib/kubelet, where device plugins look for it."""
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{folder.containerd}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": folder.cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": ["pods"],
        "clusterDNS": [network.DNS],
        "clusterDomain": "cluster.local",
        "resolvConf": "",  # nothing outside can be reached
        "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1Gi", "imagefs.available": "1Gi"},
        "imageGCHighThresholdPercent": 100,  # images cannot be pulled again
        "serializeImagePulls": False,
        "registryPullQPS": 0,
        "nodeStatusUpdateFrequency": "5s",
        "volumePluginDir": str(folder.work / "volume-plugins"),
        "shutdownGracePeriod": "0s",
    }
    path = folder.work / "kubelet.json"
    path.write_text(json.dumps(config, indent=2))
    return [
        binaries.find("kubelet"),
        f"--config={path}",
        f"--kubeconfig={kubeconfig}",
        f"--hostname-override={NODE_NAME}",
        f"--node-ip={network.NODE}",
    ]


def kube_proxy(folder: Folder, kubeconfig: Path) -> Command:
    """What makes Services reachable."""
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "mode": "iptables",
        "clusterCIDR": network.PODS,
        "hostnameOverride": NODE_NAME,
        "healthzBindAddress": f"127.0.0.1:{PROXY_HEALTH}",
        "iptables": {"minSyncPeriod": "0s"},
        "conntrack": {
            "maxPerCore": 0,  # these settings are the host's, and stay as they are
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
            "udpTimeout": "0s",
            "udpStreamTimeout": "0s",
        },
    }
    path = folder.work / "kube-proxy.json"
    path.write_text(json.dumps(config, indent=2))
    return [binaries.find("kube-proxy"), f"--config={path}"]


def scheduler(kubeconfig: Path) -> Command:
    """What gives pods to the node."""
    return [
        binaries.find("kube-scheduler"),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
    ]


def coredns(folder: Folder, kubeconfig: Path) -> Command:
    """The names of Services, at the node's address; the Service kube-dns leads there."""
    path = folder.work / "Corefile"
    path.write_text(COREDNS.format(address=network.NODE, ready=DNS_READY, kubeconfig=kubeconfig))
    return [binaries.find("coredns"), "-conf", path]


def python(module: str, *arguments: str | Path) -> Command:
    """A module of this package, run by the interpreter that runs this."""
    return [sys.executable, "-m", f"{__package__}.{module}", *arguments]


def dns_service() -> Sequence[Mapping[str, object]]:
    """The Service kube-dns, and where it leads."""
    place = {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}}
    kinds = [("dns", "UDP"), ("dns-tcp", "TCP")]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": place,
        "spec": {
            "clusterIP": network.DNS,
            "ports": [{"name": n, "port": 53, "targetPort": 53, "protocol": p} for n, p in kinds],
        },
    }
    slices = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            **place,
            "labels": {"kubernetes.io/service-name": "kube-dns", "endpointslice.kubernetes.io/managed-by": "apparate"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [network.NODE], "conditions": {"ready": True}}],
        "ports": [{"name": n, "port": 53, "protocol": p} for n, p in kinds],
    }
    return service, slices


def storage_class() -> dict[str, object]:
    """The default class, whose claims are bound at once."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": STORAGE_CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    }
