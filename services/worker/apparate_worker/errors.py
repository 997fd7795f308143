"""What a worker answers instead of a prediction.

WorkerError
├── InvalidRequest     400  INVALID_ARGUMENT     the request cannot be understood or does not fit the model
├── UnknownModel       404  NOT_FOUND            another model or version than the one served here
├── TooLarge           413  RESOURCE_EXHAUSTED   a body above the limit
├── QueueFull          429  RESOURCE_EXHAUSTED   too many requests wait; comes with Retry-After
├── InferenceFailed    500  INTERNAL             the model raised on this request
├── NotReady           503  UNAVAILABLE          starting, draining, or the device is gone
└── DeadlinePassed     504  DEADLINE_EXCEEDED    no answer within the time limit
"""

from __future__ import annotations

from typing import ClassVar

import grpc


class WorkerError(Exception):
    """Base of all; the message is for the client and names the thing, the value and the limit."""

    status: ClassVar[int] = 500
    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    retry_after_s: ClassVar[int | None] = None


class InvalidRequest(WorkerError):
    """The request cannot be understood, or does not fit the model's inputs."""

    status = 400
    code = grpc.StatusCode.INVALID_ARGUMENT


class UnknownModel(WorkerError):
    """The model or version is not served here."""

    status = 404
    code = grpc.StatusCode.NOT_FOUND


class TooLarge(WorkerError):
    """The body is above the limit of its protocol."""

    status = 413
    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class QueueFull(WorkerError):
    """As many requests wait as may wait."""

    status = 429
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    retry_after_s = 1  # a full queue at default limits drains in about this time


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
