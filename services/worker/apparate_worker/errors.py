"""What a worker answers instead of a prediction.

WorkerError
├── InvalidRequest     400  INVALID_ARGUMENT     the request cannot be understood or does not fit the model
├── LoadFailed         400  FAILED_PRECONDITION  a model that cannot be loaded as it is
├── NotAllowed         403  PERMISSION_DENIED    models come and go only where the settings allow it
├── UnknownModel       404  NOT_FOUND            another model or version than the one served here
├── TooLarge           413  RESOURCE_EXHAUSTED   a body above the limit
├── Overloaded         429  RESOURCE_EXHAUSTED   more comes than can be served; with Retry-After, from what waits
│   ├── QueueFull      429  RESOURCE_EXHAUSTED   as many requests wait as may wait
│   ├── LowClassShed   429  RESOURCE_EXHAUSTED   a request of the low class gave way
│   └── WouldBeLate    429  RESOURCE_EXHAUSTED   an answer would come after the request's deadline
├── InferenceFailed    500  INTERNAL             the model raised on this request
├── NotReady           503  UNAVAILABLE          starting, draining, or the device is gone
└── DeadlinePassed     504  DEADLINE_EXCEEDED    no answer within the time limit
"""

from __future__ import annotations

import math
from typing import ClassVar

import grpc

LEAST_WAIT_S, LONGEST_WAIT_S = 0.05, 60.0  # that a client is told to stay away under overload


class WorkerError(Exception):
    """Base of all; the message is for the client and names the thing, the value and the limit."""

    status: ClassVar[int] = 500
    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    retry_after_s: int | None = None
    """Whole seconds after which a client may try again."""
    retry_after_ms: int | None = None
    """The same, as precisely as is known; None: not more precisely."""


class InvalidRequest(WorkerError):
    """The request cannot be understood, or does not fit the model's inputs."""

    status = 400
    code = grpc.StatusCode.INVALID_ARGUMENT


class LoadFailed(WorkerError):
    """A model cannot be loaded; what was served before still is."""

    status = 400
    code = grpc.StatusCode.FAILED_PRECONDITION


class NotAllowed(WorkerError):
    """The settings of the worker do not allow it."""

    status = 403
    code = grpc.StatusCode.PERMISSION_DENIED


class UnknownModel(WorkerError):
    """The model or version is not served here."""

    status = 404
    code = grpc.StatusCode.NOT_FOUND


class TooLarge(WorkerError):
    """The body is above the limit of its protocol."""

    status = 413
    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class Overloaded(WorkerError):
    """More comes than can be served. Not 503: the worker is well, and a proxy must not take it out for this."""

    status = 429
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason: ClassVar[str] = "overloaded"
    """In metrics."""

    def __init__(self, message: str, wait_s: float = 1.0) -> None:
        """wait_s: from now, until a request like this may be served."""
        super().__init__(message)
        wait_s = min(max(wait_s, LEAST_WAIT_S), LONGEST_WAIT_S)
        self.retry_after_s = math.ceil(wait_s)
        self.retry_after_ms = math.ceil(wait_s * 1e3)


class QueueFull(Overloaded):
    """As many requests wait as may wait."""

    reason = "queue_full"


class LowClassShed(Overloaded):
    """A request of the low class gave way."""

    reason = "low_class"


class WouldBeLate(Overloaded):
    """An answer would come after the request's deadline."""

    reason = "would_be_late"


class InferenceFailed(WorkerError):
    """The model raised on this request alone."""


class NotReady(WorkerError):
    """The worker starts, drains, or has lost its device."""

    status = 503
    code = grpc.StatusCode.UNAVAILABLE
    retry_after_s = 1  # another worker answers at once


class DeadlinePassed(WorkerError):
    """No answer within the request's time limit."""

    status = 504
    code = grpc.StatusCode.DEADLINE_EXCEEDED


class InvalidSetup(ValueError):
    """The worker cannot start; the message says what to change."""


def words_of(error: BaseException) -> str:
    """What an error of the model says, without the code of ours that TorchScript shows before it."""
    text = str(error).strip()
    return text.splitlines()[-1] if "TorchScript" in text else text
