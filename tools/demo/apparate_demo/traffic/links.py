"""Connections as a careful client has them: what was not sent is tried again, what was sent is sent once."""

from __future__ import annotations

import asyncio

from apparate_demo.transport import GrpcTransport, HttpTransport, NotConnected, Transport

CONNECT_FOR_S = 10.0
"""How long a request waits for a connection before it counts as failed."""
ANSWER_WITHIN_S = 10.0
RETRY_S = 0.05
CHANNELS = 4
"""gRPC connections: a Service chooses a worker for each connection, not for each call."""
CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # or all channels of the process would share one connection
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)


class PatientHttp(HttpTransport):
    """HTTP that waits for a connection. `waited` counts attempts to connect that failed."""

    waited = 0

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """Send one whole request once there is a connection. Raises NotConnected when there is none for too long."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + CONNECT_FOR_S
        while True:
            try:
                return await super().send(request)
            except NotConnected:
                self.waited += 1
                if loop.time() >= give_up:
                    raise
                await asyncio.sleep(RETRY_S)


class PatientGrpc(GrpcTransport):
    """One gRPC connection; a call waits for it to be there."""

    waited = 0

    def __init__(self, address: str, model: str) -> None:
        super().__init__(address, model, CHANNEL_OPTIONS)

    async def send(self, request: bytes) -> bytes:
        """Send one serialised request once there is a connection."""
        answer: bytes = await self._infer(request, wait_for_ready=True, timeout=CONNECT_FOR_S)
        return answer


def links(protocol: str, address: str, model: str) -> list[Transport]:
    """The connections of one client, to be used in turn; HTTP opens as many as are needed by itself."""
    if protocol == "http":
        return [PatientHttp(address, model)]
    return [PatientGrpc(address, model) for _ in range(CHANNELS)]
