"""gRPC calls as handlers: what cannot be read, and what fails, becomes a status; no client can fill the log with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from apparate.service.telemetry import Faults, get_logger
from apparate_worker.errors import WorkerError

log = get_logger(__name__)
Context = grpc.aio.ServicerContext[Any, Any]


class Calls:
    """Makes the handlers of one service from methods that take a message and raise WorkerError."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._handlers: dict[str, Any] = {}
        self._faults = Faults(log)

    def unary(
        self, name: str, kind: Any, answer: Callable[..., Awaitable[Any]], *, with_metadata: bool = False
    ) -> None:
        """A call of one message of `kind`, and one answer; `answer` may want what gives the call's metadata, too."""

        async def call(data: bytes, context: Context) -> bytes:
            try:
                more = (context.invocation_metadata,) if with_metadata else ()
                message = await answer(kind.FromString(data), *more)
                return message.SerializeToString()  # type: ignore[no-any-return]
            except (WorkerError, DecodeError) as error:
                await refuse(context, error, kind)
            except Exception as error:  # noqa: BLE001 - outermost: told with its traceback, and answered
                self._faults("request failed", error)
                await context.abort(grpc.StatusCode.INTERNAL, "internal error")

        self._handlers[name] = grpc.unary_unary_rpc_method_handler(call)

    def stream(self, name: str, kind: Any, answers: Callable[[Any], AsyncIterator[Any]]) -> None:
        """A call of one message of `kind`, and any number of answers."""

        async def call(data: bytes, context: Context) -> AsyncIterator[bytes]:
            try:
                async for message in answers(kind.FromString(data)):
                    yield message.SerializeToString()
            except (WorkerError, DecodeError) as error:
                await refuse(context, error, kind)

        self._handlers[name] = grpc.unary_stream_rpc_method_handler(call)

    def handler(self) -> grpc.GenericRpcHandler:
        """The service, for a server."""
        return grpc.method_handlers_generic_handler(self._service, self._handlers)


async def refuse(context: Context, error: WorkerError | DecodeError, kind: Any) -> NoReturn:
    """End a call with the status of an error."""
    trailing: tuple[tuple[str, str], ...] = ()
    if isinstance(error, DecodeError):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request is no {kind.DESCRIPTOR.full_name}")
    elif error.retry_after_s is not None:
        wait_ms = error.retry_after_s * 1000 if error.retry_after_ms is None else error.retry_after_ms
        trailing = (("grpc-retry-pushback-ms", str(wait_ms)),)
    await context.abort(error.code, str(error), trailing)
    raise AssertionError("abort always raises")
