"""Which workers local mode runs for its documents, and on which ports. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from apparate.cli.ports import Ports, Wanted
from apparate.contract.document import Document

CONTROLLER_PORT = 8070  # where `apparate status` looks first; a free one when somebody has it and none was asked for
TOGETHER = "all"  # name of the workers that serve every model
HTTP_FIELD, GRPC_FIELD = "spec.serving.protocols.http.port", "spec.serving.protocols.grpc.port"


@dataclass(frozen=True)
class Served:
    """A document and the file it came from."""

    file: Path
    document: Document


@dataclass(frozen=True)
class Planned:
    """A worker that is to run, and its ports; 0 is a free one."""

    of: Served
    group: str
    name: str
    several: int
    """Workers of the group."""
    http: int
    grpc: int


def key_of(one: Served) -> str:
    """namespace/name of a model."""
    metadata = one.document.model.metadata
    return f"{metadata.namespace}/{metadata.name}"


def group_of(one: Served, *, together: bool) -> str:
    """Which workers serve a model."""
    return TOGETHER if together else key_of(one)


def plan(served: Sequence[Served], ports: Ports, *, workers: int | None, together: bool) -> tuple[Planned, ...]:
    """Every worker; `workers` of each model or what its document says, or with `together` of all models."""
    return tuple(_plan(served, ports, workers, together))


def _plan(served: Sequence[Served], ports: Ports, workers: int | None, together: bool) -> Iterator[Planned]:
    taken = {ports.controller or 0}
    for one in served[:1] if together else served:
        serving = one.document.model.spec.serving
        name, replicas = (TOGETHER, 1) if together else (one.document.model.metadata.name, serving.replicas)
        several = replicas if workers is None else workers
        http = serving.protocols.http.port if ports.http is None else ports.http
        grpc = serving.protocols.grpc.port if ports.grpc is None else ports.grpc
        for index in range(several):
            numbers = next_port(http, index, taken), next_port(grpc, index, taken)
            yield Planned(one, group_of(one, together=together), f"{name}-{index}", several, *numbers)


def next_port(wanted: int, index: int, taken: set[int]) -> int:
    """Port of a model's worker `index`: that many above the wanted one, and above any in `taken`, which it joins.

    0, a free port, stays 0.
    """
    if wanted == 0:
        return 0
    port = wanted + index
    while port in taken:
        port += 1
    taken.add(port)
    return port


def wanted(planned: Sequence[Planned], ports: Ports) -> Iterator[Wanted]:
    """The ports that must be had before anything runs, each with how the user gets another."""
    for one in planned:
        http, grpc = (f"{field} in {one.of.file}" for field in (HTTP_FIELD, GRPC_FIELD))
        yield Wanted(one.http, f"HTTP of worker {one.name}", f"--http-port or {http} names another")
        yield Wanted(one.grpc, f"gRPC of worker {one.name}", f"--grpc-port or {grpc} names another")
    yield Wanted(ports.controller or 0, "HTTP of the controller", "--controller-port names another")
