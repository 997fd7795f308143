from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class FeedbackBatch(_message.Message):
    __slots__ = ("model", "worker", "epoch", "seq", "revision", "catalog", "padded_size", "ramps", "shadow", "errors", "labels", "final_labels", "exits", "started_at", "service_ms", "released_ms", "guarded", "share", "trace")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CATALOG_FIELD_NUMBER: _ClassVar[int]
    PADDED_SIZE_FIELD_NUMBER: _ClassVar[int]
    RAMPS_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    FINAL_LABELS_FIELD_NUMBER: _ClassVar[int]
    EXITS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    SERVICE_MS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_MS_FIELD_NUMBER: _ClassVar[int]
    GUARDED_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    model: str
    worker: str
    epoch: int
    seq: int
    revision: int
    catalog: str
    padded_size: int
    ramps: _containers.RepeatedScalarFieldContainer[int]
    shadow: _containers.RepeatedScalarFieldContainer[bool]
    errors: bytes
    labels: bytes
    final_labels: bytes
    exits: bytes
    started_at: float
    service_ms: float
    released_ms: bytes
    guarded: bool
    share: float
    trace: str
    def __init__(self, model: _Optional[str] = ..., worker: _Optional[str] = ..., epoch: _Optional[int] = ..., seq: _Optional[int] = ..., revision: _Optional[int] = ..., catalog: _Optional[str] = ..., padded_size: _Optional[int] = ..., ramps: _Optional[_Iterable[int]] = ..., shadow: _Optional[_Iterable[bool]] = ..., errors: _Optional[bytes] = ..., labels: _Optional[bytes] = ..., final_labels: _Optional[bytes] = ..., exits: _Optional[bytes] = ..., started_at: _Optional[float] = ..., service_ms: _Optional[float] = ..., released_ms: _Optional[bytes] = ..., guarded: _Optional[bool] = ..., share: _Optional[float] = ..., trace: _Optional[str] = ...) -> None: ...
