from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Plan(_message.Message):
    __slots__ = ("revision", "ramps", "catalog")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    RAMPS_FIELD_NUMBER: _ClassVar[int]
    CATALOG_FIELD_NUMBER: _ClassVar[int]
    revision: int
    ramps: _containers.RepeatedCompositeFieldContainer[RampSetting]
    catalog: str
    def __init__(self, revision: _Optional[int] = ..., ramps: _Optional[_Iterable[_Union[RampSetting, _Mapping]]] = ..., catalog: _Optional[str] = ...) -> None: ...

class RampSetting(_message.Message):
    __slots__ = ("ramp", "threshold")
    RAMP_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    ramp: int
    threshold: float
    def __init__(self, ramp: _Optional[int] = ..., threshold: _Optional[float] = ...) -> None: ...
