"""A whole Kubernetes with one node, whose pods are real: etcd to kubelet, containerd, CoreDNS, volumes, pretended GPUs.

All of it runs in network, mount and process namespaces of its own, below one process. When that process ends, however
it ends, the kernel takes everything away with the namespaces; only empty cgroup folders remain, which `down` and the
next `up` remove. The host keeps its links, mounts and iptables chains as they are.

`cluster` is the host's side; `supervisor` runs inside, and the other modules are the parts that it starts.
"""
