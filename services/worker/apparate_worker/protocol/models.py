"""Which models the worker has, in which state, and which of their versions answers now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from apparate import __version__
from apparate_worker.errors import NotAllowed, NotReady, UnknownModel
from apparate_worker.protocol.dataplane import Dataplane

EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "parameters",
    "statistics",
    "model_repository",
    "schedule_policy",
    "early_exit",
)


ALLOW = "EEM_WORKER_MODEL_CONTROL=explicit would"


class State(StrEnum):
    """A version's state, in the words of the protocol's repository index."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True)
class Listed:
    """One version of a model in the index. `reason` says why it is not ready, and is empty when it is."""

    name: str
    version: str
    state: State
    reason: str = ""


class Control(Protocol):
    """Changes which models there are."""

    async def load(self, name: str) -> None:
        """Load a model, or the newest version of one that is served. Raises WorkerError."""

    async def unload(self, name: str) -> None:
        """Let go of a model once what was accepted is answered. Raises WorkerError."""


class Forbidden:
    """Control where the settings allow none."""

    async def load(self, name: str) -> None:
        """Raises NotAllowed."""
        raise NotAllowed(f"model {name!r:.80} cannot be loaded: this worker does not allow it ({ALLOW})")

    async def unload(self, name: str) -> None:
        """Raises NotAllowed."""
        raise NotAllowed(f"model {name!r:.80} cannot be unloaded: this worker does not allow it ({ALLOW})")


class Models:
    """The registry. Event loop only.

    A face asks `find` for the dataplane of a request and calls its `infer` without awaiting anything in between: so a
    version that is being replaced gets no request that it would refuse. `count(protocol, status)` counts answers to
    requests of models that are not served here.
    """

    def __init__(self, alive: Callable[[], bool], count: Callable[[str, int], None] = lambda *_: None) -> None:
        self._alive, self._count = alive, count
        self._listed: dict[str, dict[str, Listed]] = {}
        self._serving: dict[str, Dataplane] = {}
        self._declared: set[str] = set()
        self.control: Control = Forbidden()
        """Who loads and unloads for clients."""
        self.announced = False
        """Whether the worker tells load balancers to send requests."""

    def find(self, name: str, version: str = "") -> Dataplane:
        """The version that answers now. Raises UnknownModel, and NotReady for a model that is on its way."""
        plane = self._serving.get(name)
        if plane is not None and version in ("", plane.version):
            return plane
        if name not in self._listed:
            there = ", ".join(map(repr, self._listed)) or "none"
            raise UnknownModel(f"model {name!r:.80} is not served here; there are: {there}")
        if plane is not None:
            raise UnknownModel(f"model {name!r} has no version {version!r:.80}; there is {plane.version!r}")
        last = self._last(name)
        if last.state is State.LOADING:
            raise NotReady(f"model {name!r} is being loaded")
        raise UnknownModel(f"model {name!r} is not loaded: {last.reason}")

    def count(self, protocol: str, name: str, status: int) -> None:
        """Count an answered infer request by its HTTP status; `name` as the client wrote it."""
        plane = self._serving.get(name)
        (self._count if plane is None else plane.count)(protocol, status)

    def versions(self, name: str) -> list[str]:
        """The versions that requests may name now."""
        return [self._serving[name].version] if name in self._serving else []

    def index(self, *, ready: bool = False) -> list[Listed]:
        """Every version there is, or those that are ready, by model in the order of declaration."""
        listed = [one for versions in self._listed.values() for one in versions.values()]
        return [one for one in listed if one.state is State.READY] if ready else listed

    def statistics(self, name: str = "", version: str = "") -> list[dict[str, Any]]:
        """What models have done, as the statistics extension has it; of one when it is named. Raises UnknownModel."""
        planes = [self.find(name, version)] if name else self.planes
        return [plane.statistics.told(plane.name, plane.version) for plane in planes]

    @property
    def planes(self) -> list[Dataplane]:
        """What answers now, one version a model."""
        return list(self._serving.values())

    def live(self) -> bool:
        """Whether the device thread turns."""
        return self._alive()

    def ready(self) -> bool:
        """Whether requests should be sent here: every declared model takes them."""
        return self.announced and self._declared <= self._serving.keys() and all(p.ready() for p in self.planes)

    def model_ready(self, name: str, version: str = "") -> bool:
        """Whether requests for this model should be sent here. Raises UnknownModel."""
        try:
            return self.announced and self.find(name, version).ready()
        except NotReady:
            return False

    def server_metadata(self) -> dict[str, Any]:
        """Name, version and extensions of the server."""
        return {"name": "apparate", "version": __version__, "extensions": list(EXTENSIONS)}

    def declare(self, name: str) -> None:
        """The server is not ready without this model."""
        self._declared.add(name)

    def note(self, name: str, version: str, state: State, reason: str = "") -> None:
        """Show this state of a version in the index."""
        self._listed.setdefault(name, {})[version] = Listed(name, version, state, reason)

    def serve(self, plane: Dataplane) -> Dataplane | None:
        """Give requests to this version from now on; the one that it takes over from, which is then unloading."""
        before = self._serving.get(plane.name)
        listed = self._listed.get(plane.name, {})
        self._listed[plane.name] = {v: one for v, one in listed.items() if one.state is not State.UNAVAILABLE}
        if before is not None:
            self.note(plane.name, before.version, State.UNLOADING, "finishes its requests")
        self._serving[plane.name] = plane
        self.note(plane.name, plane.version, State.READY)
        return before

    def withdraw(self, name: str) -> Dataplane | None:
        """Give requests to no version any more, because the model is to be unloaded; the one that had them."""
        self._declared.discard(name)
        plane = self._serving.pop(name, None)
        if plane is not None:
            self.note(name, plane.version, State.UNLOADING, "finishes its requests")
        return plane

    def gone(self, plane: Dataplane, reason: str) -> None:
        """A version has ended. It stays in the index when it was the model's last, so that one can see why."""
        if plane.name in self._serving:
            self._listed[plane.name].pop(plane.version, None)
        else:
            self.note(plane.name, plane.version, State.UNAVAILABLE, reason)

    def _last(self, name: str) -> Listed:
        return list(self._listed[name].values())[-1]
