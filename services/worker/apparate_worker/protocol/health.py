"""The standard gRPC health service, which Kubernetes' gRPC probes and client-side load balancing ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2 as pb

from apparate_worker.errors import NotReady, UnknownModel
from apparate_worker.protocol.grpc_calls import Calls
from apparate_worker.protocol.models import Models

SERVICE = pb.DESCRIPTOR.services_by_name["Health"].full_name
LOOK_EVERY_S = 0.2  # how soon a watcher hears of a change
Status = pb.HealthCheckResponse


class Health:
    """Whether to send requests here: `` and the inference service mean the server, any other name a model."""

    def __init__(self, models: Models, inference: str) -> None:
        self._models, self._server = models, ("", inference)

    def handler(self) -> grpc.GenericRpcHandler:
        """The service, for a server."""
        calls = Calls(SERVICE)
        calls.unary("Check", pb.HealthCheckRequest, self._check)
        calls.stream("Watch", pb.HealthCheckRequest, self._watch)
        return calls.handler()

    async def _check(self, request: Any) -> Any:
        """SERVING or not. Raises UnknownModel."""
        return Status(status=self._status(request.service))

    async def _watch(self, request: Any) -> AsyncIterator[Any]:
        """The status now and after each change. Ends when the worker stops, which would wait for it otherwise."""
        last, announced = None, False
        while True:
            try:
                status = self._status(request.service)
            except UnknownModel:
                status = Status.SERVICE_UNKNOWN
            if status != last:
                yield Status(status=status)
            if announced and not self._models.announced:
                raise NotReady("the worker is stopping")
            last, announced = status, self._models.announced
            await asyncio.sleep(LOOK_EVERY_S)

    def _status(self, service: str) -> Any:
        ready = self._models.ready() if service in self._server else self._models.model_ready(service)
        return Status.SERVING if ready else Status.NOT_SERVING
