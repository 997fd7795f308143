"""Core plans and feedback as protobuf messages, and back. Arrays are little-endian and row-major."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from apparate.feedback import FeedbackBatch, InvalidFeedback
from apparate.plan import MAX_REVISION, InvalidPlan, Plan, RampSetting
from apparate_proto.v1 import feedback_pb2, plan_pb2

MOST_TRACE = 128  # characters; a traceparent has 55
F32 = np.dtype("<f4")
I32 = np.dtype("<i4")


class WireError(ValueError):
    """Bytes that are no message of ours, or a message whose parts do not agree; names the field and both sizes."""


def encode_feedback(batch: FeedbackBatch) -> bytes:
    """One stream entry's bytes. Error scores that are not a number are sent as 1, the least sure."""
    errors = np.asarray(batch.errors, F32)
    return feedback_pb2.FeedbackBatch(
        model=batch.model,
        worker=batch.worker,
        epoch=batch.epoch,
        seq=batch.seq,
        revision=batch.revision,
        catalog=batch.catalog,
        padded_size=batch.padded_size,
        ramps=batch.ramps,
        shadow=batch.shadow,
        errors=np.where(np.isnan(errors), F32.type(1.0), errors).tobytes(),
        labels=_packed(batch.labels, I32),
        final_labels=_packed(batch.final_labels, I32),
        exits=_packed(batch.exits, I32),
        started_at=batch.started_at,
        service_ms=batch.service_ms,
        released_ms=_packed(batch.released_ms, F32),
        guarded=batch.guarded,
        share=batch.share if batch.share != 1.0 else 0.0,
        trace=batch.trace,
    ).SerializeToString()


def decode_feedback(data: bytes) -> FeedbackBatch:
    """The batch of one stream entry; its arrays are read-only views of `data`'s fields. Raises WireError."""
    try:
        message = feedback_pb2.FeedbackBatch.FromString(data)
    except DecodeError as error:
        raise WireError(f"{len(data)} bytes are not a feedback batch: {error}") from None
    if message.revision > MAX_REVISION:
        raise WireError(f"revision is {message.revision}, allowed 0..{MAX_REVISION}")
    requests, ramps = len(message.final_labels) // 4, len(message.ramps)
    if len(message.shadow) != ramps:
        raise WireError(f"shadow has {len(message.shadow)} flags, there are {ramps} ramps")
    errors = _array("errors", message.errors, F32, (requests, ramps))
    if not ((errors >= 0) & (errors <= 1)).all():  # also refuses NaN
        raise WireError(f"errors of batch {message.seq} of {message.worker} has a value outside 0..1")
    released = len(message.released_ms) and requests
    try:
        return FeedbackBatch(
            model=message.model,
            worker=message.worker,
            epoch=message.epoch,
            seq=message.seq,
            revision=message.revision,
            padded_size=message.padded_size,
            ramps=tuple(message.ramps),
            errors=errors,
            labels=_array("labels", message.labels, I32, (requests, ramps)),
            final_labels=_array("final_labels", message.final_labels, I32, (requests,)),
            exits=_array("exits", message.exits, I32, (requests,)),
            shadow=tuple(message.shadow),
            catalog=message.catalog,
            started_at=message.started_at,
            service_ms=message.service_ms,
            released_ms=_array("released_ms", message.released_ms, F32, (released,)),
            guarded=message.guarded,
            share=message.share or 1.0,
            trace=message.trace[:MOST_TRACE],
        )
    except InvalidFeedback as error:
        raise WireError(str(error)) from None


def plan_to_proto(plan: Plan) -> plan_pb2.Plan:
    """The message of a plan; thresholds travel as the float32 that they are compared in."""
    ramps = [plan_pb2.RampSetting(ramp=s.ramp, threshold=s.threshold) for s in plan.ramps]
    return plan_pb2.Plan(revision=plan.revision, ramps=ramps, catalog=plan.catalog)


def plan_from_proto(message: plan_pb2.Plan) -> Plan:
    """The plan of a message. Raises WireError for one that no worker may run."""
    try:
        return Plan(
            message.revision, tuple(RampSetting(one.ramp, one.threshold) for one in message.ramps), message.catalog
        )
    except InvalidPlan as error:
        raise WireError(str(error)) from None


def _packed(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> bytes:
    return np.asarray(values, dtype).tobytes()


def _array(name: str, data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    wanted = int(np.prod(shape)) * dtype.itemsize
    if len(data) != wanted:
        raise WireError(f"{name} has {len(data)} bytes, expected {wanted} for shape {list(shape)}")
    return np.frombuffer(data, dtype).reshape(shape)
