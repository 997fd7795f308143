"""`apparate bench`: load on one served model from outside, and what its clients see."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import time
import urllib.error
import urllib.request
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import typer

from apparate.cli.errors import BAD_INPUT, FAILED, CommandError
from apparate.cli.output import Format, Output, show
from apparate.cli.progress import working
from apparate.cli.tables import table
from apparate_demo import oip
from apparate_demo.transport import connect
from apparate_proto.inference import open_inference_pb2 as pb

TIMEOUT_S = 5.0
VARIES = 16  # size of a dimension that varies, where no input is given
MOST_ITEMS = 1024  # that requests are made of beforehand
WARM_UP = 0.1  # share of the time that is not counted
DTYPES = {name: np.dtype(dtype) for dtype, name in oip.DATATYPES.items()}


@dataclass
class Seen:
    """What became of the requests; times in seconds."""

    latencies: list[float] = field(default_factory=list)
    exits: Counter[int] = field(default_factory=Counter)
    revisions: set[int] = field(default_factory=set)
    errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Figures; latencies in milliseconds, null where there was no answer."""
        times = 1e3 * np.array(self.latencies)
        percentiles = {
            f"p{p}_ms": round(float(np.percentile(times, p)), 3) if len(times) else None for p in PERCENTILES
        }
        answered = len(times)
        return {
            "answers": answered,
            "seconds": round(self.seconds, 2),
            "throughput_rps": round(answered / self.seconds, 1) if self.seconds else 0.0,
            **percentiles,
            "exit_rates": {_ramp(ramp): round(count / answered, 4) for ramp, count in sorted(self.exits.items())},
            "plan_revisions": sorted(self.revisions),
            "errors": dict(self.errors),
        }


PROTOCOLS = {"http": "127.0.0.1:8080", "grpc": "127.0.0.1:9000"}
METADATA = "/inference.GRPCInferenceService/ModelMetadata"
GIVE_UP_S = 10.0  # for the last answers
PERCENTILES = (25, 50, 95, 99)


def _ramp(ramp: int) -> str:
    return "final" if ramp == oip.FINAL else str(ramp)


def bench_command(
    model: Annotated[str, typer.Argument(help="Name of the model, as the worker serves it.")],
    address: Annotated[
        str, typer.Option(help="HOST:PORT of the worker. Default: 127.0.0.1:8080, with grpc 127.0.0.1:9000.")
    ] = "",
    protocol: Annotated[str, typer.Option(help="http or grpc.")] = "http",
    data: Annotated[
        Path | None, typer.Option("--input", help=".npz with one array [N, ...] for each input. Default: random ones.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=1.0, max=3600.0, help="How long; the first tenth is not counted.")
    ] = 10.0,
    connections: Annotated[int, typer.Option(min=1, max=1024, help="Requests under way at any time.")] = 16,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001, max=100_000, help="Requests a second by Poisson arrivals instead, whatever the answers do."
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Load a served model and tell throughput, latencies and where answers left."""
    if protocol not in PROTOCOLS:
        raise CommandError(f"--protocol is {protocol!r}, must be one of {', '.join(PROTOCOLS)}", BAD_INPUT)
    address = address or PROTOCOLS[protocol]
    if not re.fullmatch(r"\S+:\d+", address) or "/" in address:
        raise CommandError(f"--address is {address!r}, must be HOST:PORT, without http://", BAD_INPUT)
    inputs = _inputs(address, model) if protocol == "http" else _inputs_by_grpc(address, model)
    traffic = _read(data, [one["name"] for one in inputs]) if data is not None else oip.Traffic(_random(inputs))
    target = (protocol, address, model if protocol == "grpc" else quote(model, safe=""))
    with working(f"{model}: {seconds:g} s of requests"):
        seen = asyncio.run(_load(target, traffic, seconds, connections, rate))
    found = seen.to_json()
    if not seen.latencies:
        told = "; ".join(f"{count} times: {why}" for why, count in seen.errors.most_common(3)) or "none was sent"
        raise CommandError(f"{address} gave no answer: {told}", FAILED)
    show(found, output, lambda: _table(model, found))
    if failed := seen.errors.total():
        why, _ = seen.errors.most_common(1)[0]
        raise CommandError(f"{failed} requests had no answer, most often: {why}", FAILED)


def _table(model: str, found: Mapping[str, Any]) -> None:
    rows = [(name, "" if value is None else f"{value}") for name, value in found.items() if not isinstance(value, dict)]
    rows += [(f"left at {ramp}", f"{share:.1%}") for ramp, share in found["exit_rates"].items()]
    table(model, ("", "measured"), rows, right=("measured",))


def _inputs(address: str, model: str) -> list[dict[str, Any]]:
    """What the model takes, by its metadata. Raises CommandError."""
    url = f"http://{address}/v2/models/{quote(model, safe='')}"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            found: list[dict[str, Any]] = json.load(response)["inputs"]
    except urllib.error.HTTPError as error:
        with error:
            told = error.read()[:200].decode(errors="replace")
        raise CommandError(f"{url} answers {error.code}: {told}", BAD_INPUT) from None
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        said = f"{getattr(error, 'reason', error)!s:.200}".encode("ascii", "backslashreplace").decode()
        raise CommandError(f"no worker speaks HTTP at {address}: {said} (--address)", FAILED) from None
    return found


def _inputs_by_grpc(address: str, model: str) -> list[dict[str, Any]]:
    """The same, over gRPC. Raises CommandError."""
    import grpc

    with grpc.insecure_channel(address) as channel:
        try:
            call: Any = channel.unary_unary(METADATA)
            answer: bytes = call(pb.ModelMetadataRequest(name=model).SerializeToString(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            known = error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)
            told = error.details() if known else f"no worker speaks gRPC at {address}: {error.details()} (--address)"
            raise CommandError(str(told), BAD_INPUT if known else FAILED) from None
    inputs = pb.ModelMetadataResponse.FromString(answer).inputs
    return [{"name": one.name, "datatype": one.datatype, "shape": list(one.shape)} for one in inputs]


def _read(path: Path, names: Sequence[str]) -> oip.Traffic:
    """Requests of one's own. Raises CommandError."""
    try:
        found = oip.Traffic.load(path)
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        told = error.strerror if isinstance(error, OSError) and error.strerror else "is no .npz of plain arrays"
        raise CommandError(f"{path}: {told}", BAD_INPUT) from None
    if lacking := [name for name in names if name not in found.arrays]:
        raise CommandError(f"{path} has no array {', '.join(lacking)}; it has {', '.join(found.arrays)}", BAD_INPUT)
    arrays = {name: found.arrays[name] for name in names}
    lengths = {len(one) if one.ndim else 0 for one in arrays.values()}
    if len(lengths) != 1 or 0 in lengths or any(str(one.dtype) not in oip.DATATYPES for one in arrays.values()):
        raise CommandError(
            f"{path}: arrays must be of numbers and as long as each other, one entry a request", BAD_INPUT
        )
    return oip.Traffic(arrays, found.lengths)


def _random(inputs: list[dict[str, Any]]) -> dict[str, npt.NDArray[Any]]:
    """[64, ...] inputs: normal numbers, ones where the type is whole. Raises CommandError."""
    draw = np.random.default_rng(0)
    arrays = {}
    for one in inputs:
        if one["datatype"] not in DTYPES:
            raise CommandError(f"input {one['name']} is {one['datatype']}: give requests by --input", BAD_INPUT)
        dtype = DTYPES[one["datatype"]]
        shape = [64, *(VARIES if size == -1 else size for size in one["shape"][1:])]
        whole = dtype.kind in "iu"
        arrays[one["name"]] = np.ones(shape, dtype) if whole else draw.standard_normal(shape).astype(dtype)
    return arrays


async def _load(
    target: tuple[str, str, str], traffic: oip.Traffic, seconds: float, connections: int, rate: float | None
) -> Seen:
    """Send requests to a (protocol, address, model) for so long: closed loop, or open loop at `rate`."""
    transport = connect(*target)  # in the loop: a gRPC channel belongs to one
    bodies = [transport.request(traffic.item(i)) for i in range(min(len(traffic), MOST_ITEMS))]
    seen, clock = Seen(), time.monotonic
    began = clock()
    counted, ends = began + WARM_UP * seconds, began + seconds
    sent = 0

    async def one() -> None:
        nonlocal sent
        body, start = bodies[sent % len(bodies)], clock()
        sent += 1
        try:
            answer = await transport.send(body)
            done = clock()
            found = transport.read(answer)
        except Exception as error:  # noqa: BLE001 - any failure is a request without an answer, and is counted
            seen.errors[f"{type(error).__name__}: {error}"[:200]] += 1
            await asyncio.sleep(0.01)  # a server that refuses at once is not asked without end
            return
        if start >= counted and done <= ends:
            seen.latencies.append(done - start)
            seen.exits[found.exit_ramp] += 1
            seen.revisions.add(found.revision)

    async def closed() -> None:
        while clock() < ends:
            await one()

    tasks: set[asyncio.Task[None]] = set()
    if rate is None:
        tasks = {asyncio.create_task(closed()) for _ in range(connections)}
    else:
        draw, at = np.random.default_rng(0), began
        while (at := at + draw.exponential(1.0 / rate)) < ends and clock() < ends:
            await asyncio.sleep(max(0.0, at - clock()))
            tasks.add(task := asyncio.create_task(one()))
            task.add_done_callback(tasks.discard)
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=max(0.0, ends - clock()) + GIVE_UP_S)
        for task in late:
            task.cancel()
            seen.errors[f"no answer {GIVE_UP_S:.0f} s after the end"] += 1
        await asyncio.gather(*late, return_exceptions=True)
    seen.seconds = ends - counted
    await transport.close()
    return seen
