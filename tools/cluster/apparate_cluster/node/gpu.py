"""Pretended GPUs: `python -m apparate_cluster.node.gpu COUNT`.

A device plugin as a maker of GPUs would write it, without the devices: the kubelet counts them, the scheduler gives
each to one container only, and a pod that asks for more than are free stays Pending. There is nothing in the container
but the name of the device, in the variable that NVIDIA's plugin uses too.
"""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from .parts import GPU

FOLDER = Path("/var/lib/kubelet/device-plugins")  # fixed by the kubelet
KUBELET = FOLDER / "kubelet.sock"
OWN = FOLDER / "apparate-gpu.sock"
LOOK_S = 0.5
HERE = Path(__file__).parent


class Plugin:
    """The service that the kubelet calls."""

    def __init__(self, messages: Any, count: int) -> None:
        self._messages = messages
        self._names = [f"pretended-gpu-{number}" for number in range(count)]

    def GetDevicePluginOptions(self, request: Any, context: grpc.ServicerContext) -> Any:
        """None of the options is used."""
        return self._messages.DevicePluginOptions()

    def ListAndWatch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        """All devices, healthy for ever; the stream stays open as long as the kubelet holds it."""
        over: queue.Queue[None] = queue.Queue()
        context.add_callback(lambda: over.put(None))
        devices = [self._messages.Device(ID=name, health="Healthy") for name in self._names]
        yield self._messages.ListAndWatchResponse(devices=devices)
        over.get()

    def Allocate(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Tell each container which devices are its own."""
        answers = [
            self._messages.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": ",".join(one.devices_ids)})
            for one in request.container_requests
        ]
        return self._messages.AllocateResponse(container_responses=answers)


def main() -> None:
    """Serve until the process ends; register with the kubelet now, and again whenever that was started anew."""
    sys.path.insert(0, str(Path(__file__).parent))  # where grpc looks for the .proto
    messages, services = grpc.protos_and_services("device_plugin.proto")
    kind = type("Service", (Plugin, services.DevicePluginServicer), {})  # which refuses the calls that are not above
    service = kind(messages, int(sys.argv[1]))
    server, registered_with = None, 0
    while True:
        kubelet = KUBELET.stat().st_ino if KUBELET.exists() else 0
        if kubelet and kubelet != registered_with:
            if server:
                server.stop(grace=0).wait()
            server, registered_with = _serve(messages, services, service), kubelet
        time.sleep(LOOK_S)


def _serve(messages: Any, services: Any, service: Any) -> grpc.Server:
    OWN.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(8))
    services.add_DevicePluginServicer_to_server(service, server)
    server.add_insecure_port(f"unix://{OWN}")
    server.start()
    with grpc.insecure_channel(f"unix://{KUBELET}") as channel:
        asked = messages.RegisterRequest(version="v1beta1", endpoint=OWN.name, resource_name=GPU)
        services.RegistrationStub(channel).Register(asked, timeout=30)
    return server


if __name__ == "__main__":
    main()
