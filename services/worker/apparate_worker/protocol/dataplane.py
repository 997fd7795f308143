"""What the protocol's calls mean here, the same for HTTP and gRPC: health, metadata, and one inference."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from apparate.contract.resource import TensorSpec
from apparate.feedback import FINAL
from apparate_worker.batching import Batcher
from apparate_worker.cache import Cache, Remember, content_key
from apparate_worker.errors import DeadlinePassed, InvalidRequest, NotReady, WorkerError
from apparate_worker.pending import Pending
from apparate_worker.protocol.classification import classify
from apparate_worker.protocol.exits import PARAMETERS, read_exits
from apparate_worker.protocol.limits import read_limit, read_priority
from apparate_worker.protocol.tensors import BYTES, DTYPES
from apparate_worker.release import error_scores
from apparate_worker.statistics import Statistics

Array = npt.NDArray[Any]
VERSION = "1"  # of what a worker starts with; each load of a newer one counts up
LABEL, EXIT_RAMP, ERROR_SCORE = "label", "exit_ramp", "error_score"
EXTRA_OUTPUTS = {LABEL: "INT64", EXIT_RAMP: "INT32", ERROR_SCORE: "FP32"}
CLASSES_INLINE = 1024  # written in about a millisecond; more would hold up the event loop
ERROR_DIGITS = 7  # decimals of a float32 within 0..1
Parameter = bool | int | float | str


@dataclass(slots=True)
class InferRequest:
    """One request as a face has read it. Arrays are [N, ...] with the datatypes the client named."""

    model: str
    version: str = ""
    id: str = ""
    inputs: dict[str, tuple[str, Array]] = field(default_factory=dict)
    """By name: datatype and values."""
    outputs: tuple[str, ...] = ()
    """Names of the outputs that are wanted; empty for the scores and the label."""
    top: dict[str, int] = field(default_factory=dict)
    """By output that is wanted as its best classes: how many."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    trace: Any = None
    """The span of a request that is traced."""


@dataclass(slots=True)
class InferResponse:
    """One answer: outputs in the order asked for."""

    model: str
    id: str
    outputs: list[tuple[str, str, Array]]
    """(name, datatype, values); BYTES as an array of bytes objects."""
    parameters: dict[str, Parameter]
    version: str = VERSION


@dataclass(frozen=True)
class TensorMetadata:
    """Name, datatype and shape of an input or output; -1 where a size varies."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Dataplane:
    """One version of a served model. `alive` says whether the device turns; `accepting` is its owner's switch."""

    def __init__(
        self,
        *,
        name: str,
        inputs: Sequence[TensorSpec],
        output: str,
        classes: Sequence[str],
        layers: Sequence[str],
        batcher: Batcher,
        queue_timeout_s: float,
        alive: Callable[[], bool],
        version: str = VERSION,
        count: Callable[[str, int], None] = lambda *_: None,
        client_exits: Collection[str] = PARAMETERS,
        default_priority: int = 1,
        objective_s: float | None = None,
        cache: Cache | None = None,
    ) -> None:
        """client_exits: which parameters about early exits requests may have."""
        self.name, self.version, self.count = name, version, count
        self.inputs, self.output, self.layers = tuple(inputs), output, tuple(layers)
        self._classes, self._client_exits = tuple(classes), tuple(client_exits)
        self._batcher, self._queue_timeout_s, self._alive = batcher, queue_timeout_s, alive
        self.accepting = False
        """Whether new requests are taken: false while starting and once draining has stopped taking."""
        self._default_priority, self.cache = default_priority, cache
        self.objective_s = objective_s
        """An answer after this is of no use, whatever the request says; None: it is."""
        self.in_flight = 0
        """Requests accepted and not yet answered."""
        self.statistics = Statistics()

    def ready(self) -> bool:
        """Whether it answers new requests."""
        return self.accepting and self._alive()

    def model_inputs(self) -> list[TensorMetadata]:
        """The model's inputs with their batch dimension."""
        return [TensorMetadata(spec.name, spec.datatype, (-1, *spec.shape)) for spec in self.inputs]

    def model_outputs(self) -> list[TensorMetadata]:
        """Class scores, and what is told about the answer."""
        scores = TensorMetadata(self.output, "FP32", (-1, len(self._classes) or -1))
        return [scores, *(TensorMetadata(name, datatype, (-1,)) for name, datatype in EXTRA_OUTPUTS.items())]

    async def infer(self, request: InferRequest) -> InferResponse:
        """The answer to one request of one or several items. Raises WorkerError."""
        arrived = time.monotonic()
        wanted = request.outputs or (self.output, LABEL)
        for name in wanted:
            if name != self.output and name not in EXTRA_OUTPUTS:
                known = ", ".join((self.output, *EXTRA_OUTPUTS))
                raise InvalidRequest(f"output {name!r:.80} is not known; there are: {known}")
        for name, top in request.top.items():
            if top and name != self.output:
                raise InvalidRequest(f"output {name!r} has no classes; classification is for {self.output!r}")
        items, arrays = self._check_inputs(request.inputs)
        asked = read_exits(request.parameters, self._client_exits, len(self.layers))
        priority = read_priority(request.parameters, self._default_priority)
        limit_s, words = read_limit(request.parameters, asked.deadline_s, self.objective_s)
        if not self.accepting:
            raise NotReady("the worker is starting or stopping")
        loop = asyncio.get_running_loop()
        remember = None
        if self.cache is not None:
            key = content_key(arrays)
            if (kept := self.cache.find(key)) is not None:
                return await self._again(request, Pending(arrays, items, loop.create_future(), arrived), kept, wanted)
            remember = Remember(self.cache, key, items)
        deadline = math.inf if limit_s is None else arrived + limit_s
        pending = Pending(arrays, items, loop.create_future(), arrived, priority=priority, deadline=deadline)
        pending.limits, pending.trace, pending.remember = asked.limits, request.trace, remember
        try:
            self._batcher.put(pending)
        except WorkerError:
            self.statistics.failed(time.monotonic() - arrived)
            raise
        timers = [loop.call_later(self._queue_timeout_s, self._waited_too_long, pending)]
        if limit_s is not None:
            timers.append(loop.call_later(limit_s, self._too_late, pending, words))
        self.in_flight += 1
        try:
            await pending.future
        finally:
            self.in_flight -= 1
            for timer in timers:
                timer.cancel()
            if pending.left:  # cancelled, failed or too late: what still waits of it must not run
                self._batcher.drop(pending)
                self.statistics.failed(time.monotonic() - arrived)
            else:
                self.statistics.answered(time.monotonic() - arrived)
        answer = self._response(request, pending, wanted)
        if request.top:
            await self._classify(answer, request.top)
        return answer

    async def _again(
        self, request: InferRequest, pending: Pending, known: Array, wanted: Sequence[str]
    ) -> InferResponse:
        """An answer that was given before, of the plain model."""
        pending.logits, pending.labels = known, known.argmax(axis=1)
        self.statistics.given_again(time.monotonic() - pending.arrived)
        answer = self._response(request, pending, wanted)
        answer.parameters["cached"] = True
        if request.top:
            await self._classify(answer, request.top)
        return answer

    def _waited_too_long(self, pending: Pending) -> None:
        if not pending.taken:
            pending.fail(
                DeadlinePassed(f"the request waited {self._queue_timeout_s:g} s in the queue, the longest allowed")
            )

    @staticmethod
    def _too_late(pending: Pending, words: str) -> None:
        pending.fail(DeadlinePassed(f"no answer within {words}"))

    def _response(self, request: InferRequest, pending: Pending, wanted: Sequence[str]) -> InferResponse:
        logits = pending.logits
        assert logits is not None
        errors = _error_scores(logits)
        ramp = _last(pending.exits)
        parameters: dict[str, Parameter] = {
            "plan_revision": pending.revision,
            "exit_ramp": ramp,
            "exit_layer": "final" if ramp == FINAL else self.layers[ramp],
            "error_score": round(max(errors), ERROR_DIGITS),
        }
        values = {
            self.output: ("FP32", logits),
            LABEL: ("INT64", pending.labels),
            EXIT_RAMP: ("INT32", pending.exits),
        }
        if ERROR_SCORE in wanted:
            values[ERROR_SCORE] = ("FP32", np.array(errors, np.float32))
        outputs = [(name, *values[name]) for name in wanted]
        return InferResponse(self.name, request.id, outputs, parameters, self.version)

    async def _classify(self, answer: InferResponse, tops: Mapping[str, int]) -> None:
        """Put outputs that are wanted as their best classes into that form."""
        for at, (name, _, values) in enumerate(answer.outputs):
            if top := tops.get(name):
                if len(values) * min(top, values.shape[1]) <= CLASSES_INLINE:
                    found = classify(values, top, self._classes)
                else:
                    found = await asyncio.to_thread(classify, values, top, self._classes)
                answer.outputs[at] = (name, BYTES, found)

    def _check_inputs(self, given: Mapping[str, tuple[str, Array]]) -> tuple[int, dict[str, Array]]:
        """(items, arrays by name) of inputs that fit the model. Raises InvalidRequest."""
        items, arrays = -1, {}
        for spec in self.inputs:
            if spec.name not in given:
                raise InvalidRequest(f"input {spec.name!r} is missing; the model takes {[s.name for s in self.inputs]}")
            datatype, values = given[spec.name]
            _check_tensor(spec, datatype, values)
            if items not in (-1, len(values)):
                raise InvalidRequest(
                    f"input {spec.name!r} has {len(values)} items, {self.inputs[0].name!r} has {items}"
                )
            items, arrays[spec.name] = len(values), values
        if len(given) != len(self.inputs):
            unknown = next(name for name in given if name not in arrays)
            raise InvalidRequest(f"input {unknown!r:.80} is not known; the model takes {[s.name for s in self.inputs]}")
        return items, arrays


def _check_tensor(spec: TensorSpec, datatype: str, values: Array) -> None:
    name, shape = spec.name, values.shape
    if datatype != spec.datatype:
        raise InvalidRequest(f"input {name!r} is {datatype}, the model takes {spec.datatype}")
    if datatype == BYTES:
        if shape[-1] > spec.max_size:
            raise InvalidRequest(
                f"input {name!r} has an element of {shape[-1]} bytes, at most {spec.max_size} are allowed"
            )
        shape = shape[:-1]
    elif values.dtype != DTYPES[datatype]:
        raise InvalidRequest(f"input {name!r} holds {values.dtype}, the model takes {spec.datatype}")
    if len(shape) != len(spec.shape) + 1:
        raise InvalidRequest(
            f"input {name!r} has shape {list(shape)}, expected {[-1, *spec.shape]} with the batch first"
        )
    if shape[0] < 1:
        raise InvalidRequest(f"input {name!r} has shape {list(shape)}: there must be at least one item")
    for size, expected in zip(shape[1:], spec.shape, strict=True):
        if expected == -1 and not 1 <= size <= spec.max_size:
            raise InvalidRequest(f"input {name!r} has shape {list(shape)}: {size} is not within 1..{spec.max_size}")
        if expected not in (-1, size):
            raise InvalidRequest(f"input {name!r} has shape {list(shape)}, expected {[-1, *spec.shape]}")


def _last(exits: Array) -> int:
    """The ramp of the item that left last: the deepest, FINAL when any item ran to the end."""
    return int(exits[0]) if len(exits) == 1 else FINAL if (exits == FINAL).any() else int(exits.max())


def _error_scores(logits: Array) -> list[float]:
    """Of each item, from the scores that its answer carries; 1 where one is not a number, as in feedback."""
    return [error if error == error else 1.0 for error in error_scores(logits)]
