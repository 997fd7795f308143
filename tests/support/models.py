"""Small models for the worker's tests: one made by hand, with hooks, and one cut and stored by the real tooling."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from apparate.catalog import RampCatalog
from apparate.contract.document import Document, parse_documents
from apparate.contract.resource import PlanStatus, TensorSpec
from apparate.plan import Plan
from apparate.service.tracing import Tracing
from apparate_worker.model.cutting import cut
from apparate_worker.model.graph import sites, trace
from apparate_worker.model.ramps import RampHead, RampShape, describe
from apparate_worker.model.sources import NamedCall
from apparate_worker.model.store import PreparedModel, publish, save_backbone, save_ramps
from apparate_worker.passes import Pass
from apparate_worker.served import Declared, Served
from apparate_worker.settings import WorkerSettings
from apparate_worker.worker import Worker
from support.eventually import eventually

WIDTH = 16
X = TensorSpec(name="x", datatype="FP32", shape=(WIDTH,))


def no_hook(k: int, value: Tensor) -> None:
    """Does nothing before a segment."""


@dataclass
class State:
    value: Tensor
    mask: Tensor | None = None


@dataclass
class Chain:
    """R+1 seeded layers over the sum of all inputs; `hook(k, value)` is called before segment k and may raise or wait.

    An input of any datatype becomes WIDTH numbers: its values' sum, by place modulo WIDTH.
    """

    ramps: int = 3
    classes: int = 3
    hook: Callable[[int, Tensor], None] = no_hook
    mask_input: str | None = None
    seed: int = 3
    weights: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        sizes = [*[WIDTH] * self.ramps, self.classes]
        self.weights = [torch.randn(size, WIDTH, generator=generator) / 3 for size in sizes]

    @property
    def segments(self) -> list[Tensor]:
        return self.weights

    def arrange(self, opened: Sequence[int], says: object) -> None:
        """Nothing to do."""

    def start(self, inputs: Mapping[str, Tensor], says: object = ()) -> State:
        total = sum(_folded(values) for values in inputs.values())
        assert isinstance(total, Tensor)
        return State(total, inputs[self.mask_input] if self.mask_input else None)

    def advance(self, k: int, state: State) -> State:
        self.hook(k, state.value)
        value = state.value @ self.weights[k].T
        return State(torch.tanh(value) if k < self.ramps else value * 3, state.mask)

    def site(self, state: State) -> Tensor:
        return state.value

    def mask(self, state: State) -> Tensor | None:
        return state.mask

    def output(self, state: State) -> Tensor:
        return state.value

    def likeness(self, state: State) -> Hashable:
        return (state.value.shape[1:], state.mask.shape[1:] if state.mask is not None else None)

    def select(self, state: State, rows: Sequence[int]) -> State:
        return State(state.value[list(rows)], state.mask[list(rows)] if state.mask is not None else None)

    def join(self, states: Sequence[State]) -> State:
        masks = [state.mask for state in states if state.mask is not None]
        return State(torch.cat([state.value for state in states]), torch.cat(masks) if masks else None)

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The plain model."""
        with torch.inference_mode():
            state = self.start(inputs)
            for k in range(self.ramps + 1):
                state = self.advance(k, state)
            return self.output(state)


def _folded(values: Tensor) -> Tensor:
    flat = values.to(torch.float32).reshape(len(values), -1)
    flat = nn.functional.pad(flat, (0, -flat.shape[1] % WIDTH))
    return flat.reshape(len(values), -1, WIDTH).sum(1)


def a_catalog(ramps: int = 3, digest: str = "tiny", overhead_ms: float = 0.001) -> RampCatalog:
    """T rises by 1 ms a ramp; every ramp costs the same."""
    reach = np.tile(np.arange(1.0, ramps + 1), (2, 1))
    return RampCatalog((1, 8), reach, np.full((2, ramps), overhead_ms), np.full(2, ramps + 1.0), digest=digest)


def heads(ramps: int, classes: int, sharp: float = 1.0) -> tuple[RampHead, ...]:
    """Seeded heads over WIDTH features; `sharp` scales how sure they are."""
    generator = torch.Generator().manual_seed(5)
    return tuple(
        RampHead(
            RampShape(2, "none"), torch.randn(classes, WIDTH, generator=generator) * sharp, torch.zeros(classes), 1.5
        )
        for _ in range(ramps)
    )


def a_prepared_model(
    *,
    inputs: Sequence[TensorSpec] = (X,),
    ramps: int = 3,
    classes: int = 3,
    hook: Callable[[int, Tensor], None] = no_hook,
    sharp: float = 1.0,
    seed: int = 3,
) -> PreparedModel:
    """A hand-made prepared model in memory."""
    chain: Any = Chain(ramps, classes, hook, seed=seed)
    names = tuple(f"class{c}" for c in range(classes))
    return PreparedModel(a_catalog(ramps), chain, heads(ramps, classes, sharp), tuple(inputs), "logits", names)


def a_document(
    *, name: str = "tiny", inputs: Sequence[TensorSpec] = (X,), base: Path = Path("/nowhere"), **spec: Any
) -> Document:
    """A document; keywords are parts of the spec, in the document's own names."""
    content = {
        "apiVersion": "apparate.dev/v1alpha1",
        "kind": "EarlyExitModel",
        "metadata": {"name": name},
        "spec": {
            "model": {
                "source": "tiny.safetensors",
                "entrypoint": "tiny:make",
                "inputs": [one.model_dump(by_alias=True, mode="json") for one in inputs],
            },
            "bootstrap": {"data": "data.npz"},
            **spec,
        },
    }
    (document,) = parse_documents(yaml.safe_dump(content), origin="tiny.yaml", base=base)
    return document


@contextlib.asynccontextmanager
async def a_worker(
    prepared: PreparedModel | None = None,
    *,
    redis_url: str = "",
    name: str = "w1",
    plan: Plan | None = None,
    tracing: Tracing | None = None,
    workers: int = 0,
    **spec: Any,
) -> AsyncIterator[tuple[Worker, str, str]]:
    """A worker in this process, on free ports: (worker, HTTP address, gRPC address). `plan` is in force at once.

    A pass that a test or a busy machine holds up is not taken for a lost device, unless `serving` says when it is.
    """
    prepared = prepared or a_prepared_model()
    spec["serving"] = {"stallSeconds": 100, **spec.get("serving", {})}
    document = a_document(inputs=prepared.inputs, **spec)
    settings = WorkerSettings.load(
        {}, document=Path("tiny.yaml"), http_port=0, grpc_port=0, redis_url=redis_url, name=name, workers=workers
    )
    worker = Worker([Declared(document, prepared)], settings, torch.device("cpu"), tracing)
    if plan is not None:
        only(worker).keeper.take(PlanStatus.of(plan).model_dump_json(by_alias=True).encode())
        only(worker).apply(plan)
    http, grpc = await worker.start()
    try:
        yield worker, http, grpc
    finally:
        await worker.drain(0.0)


def only(worker: Worker) -> Served:
    """The one model that a worker serves."""
    (found,) = worker.served.values()
    return found


def filled(worker: Worker) -> None:
    """Give the guard's ledger credit, so that exits open at once, once it has heard of the answers before."""
    eventually(lambda: all(_awaited(one) for one in tuple(only(worker).serving._under_way)))
    only(worker).guard._guard.ledger.credit = only(worker).guard._guard.ledger.most
    only(worker).guard.observe([False] * 100)


def _awaited(one: Pass) -> bool:
    """Whether somebody still waits for an answer of this pass."""
    return any(one.release.waits(row) for row in range(len(one.items)))


ENDLESS, CRASH, TOO_LARGE = 1000.0, 2000.0, 3000.0
WILD = f"""
    while bool((v_inputs_0 == {ENDLESS}).any()):
        v_inputs_0 = v_inputs_0 * 1.0
    assert not bool((v_inputs_0 == {CRASH}).any()), "CUDA error: an illegal memory access was encountered"
    assert not bool((v_inputs_0 == {TOO_LARGE}).any()), "CUDA out of memory. Tried to allocate 2.00 GiB"
"""
"""What a model does before its first segment, when a value of an input asks for it."""


def write_prepared(folder: Path, *, before: str = "", **spec: Any) -> Path:
    """A document and its prepared folder, traced, cut and stored by the real tooling; the document's path.

    before: lines that the first segment runs first.
    """
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)).eval()
    document = a_document(base=folder, **spec)
    graph = trace(NamedCall(model, ("x",), "logits", by_name=False), [torch.randn(2, WIDTH)], [X])
    at = sites(graph)
    reach = np.tile(np.arange(1.0, len(at) + 1), (2, 1))
    catalog = RampCatalog((1, 8), reach, np.full((2, len(at)), 0.001), np.full(2, len(at) + 1.0))
    ramps = [RampHead(RampShape(2, "none"), torch.randn(3, 32), torch.zeros(3), 1.0) for _ in at]
    extra = {
        "inputs": [X.model_dump(by_alias=True, mode="json")],
        "output": "logits",
        "classes": ["a", "b", "c"],
        "ramps": [describe(head) for head in ramps],
    }
    partial = document.prepared.with_name("partial")
    partial.mkdir(parents=True)
    text = cut(graph, at, ["x"], None)
    head, _, body = text.segments[0].code.partition("\n")
    first = replace(text.segments[0], code=f"{head}{before.rstrip()}\n{body}")
    text = replace(text, segments=(first, *text.segments[1:]))
    save_backbone(partial, {n.name: value for n, value in graph.constants.items()}, text)
    save_ramps(partial, ramps)
    publish(partial, document.prepared, RampCatalog.from_json(catalog.to_json() | extra))
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(document.model.model_dump(by_alias=True, mode="json", exclude_none=True)))
    return path


def items(count: int, seed: int = 0) -> np.ndarray:
    """[count, WIDTH] FP32."""
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


def agreeing(prepared: PreparedModel, plan: Plan, count: int) -> np.ndarray:
    """[count, WIDTH] items whose answers under a plan are all the model's own, so that no guard closes its exits.

    Heads that are made by hand know nothing: of other items they say anything, and what a guard makes of that depends
    on which of them it sees first.
    """
    x = torch.from_numpy(items(20 * count))
    own, model = prepared.model({"x": x}).argmax(1), prepared.model
    wrong, left = torch.zeros(len(x), dtype=torch.bool), torch.zeros(len(x), dtype=torch.bool)
    with torch.inference_mode():
        state = model.start({"x": x})
        for k in range(len(prepared.heads)):
            state = model.advance(k, state)
            for setting in plan.ramps:
                if setting.ramp == k:
                    best, label = torch.softmax(prepared.heads[k].logits(model.site(state)), 1).max(1)
                    leaves = ~left & (1 - best < setting.threshold)
                    wrong, left = wrong | (leaves & (label != own)), left | leaves
    found: np.ndarray = x[~wrong][:count].numpy()
    assert len(found) == count
    return found


def rows(array: np.ndarray) -> Iterator[np.ndarray]:
    """[1, ...] each."""
    return (array[i : i + 1] for i in range(len(array)))
