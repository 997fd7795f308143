"""The worker beside other Python model servers, and what its own parts cost.

    make bench-serving                                    # everything, a quarter of an hour
    make bench-serving ARGS="--only noop,text --rounds 3" # parts of it; --json FILE keeps what other parts have found

All servers of a part run at once and one of them is loaded at a time, round after round, each round beginning with
another one. wrk sends, the same requests to all, and every server's answers are compared with the model's own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import overhead
import report
import speed
from environments import HERE, PEERS, environment, wrk
from models import NOOP, Prepared, prepare

REAL = ("vision", "text")
Part = Callable[[argparse.Namespace], Any]
known: dict[str, Prepared] = {}


def main() -> int:
    """Command line; the exit status is 1 when a request failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, of: {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured")
    parser.add_argument("--seconds", type=int, default=2, help="how long a server is loaded in a round")
    parser.add_argument("--json", type=Path, default=Path("out/bench-serving.json"), help="parts found before stay in")
    parser.add_argument("--plot", type=Path, default=Path("out/bench-serving.png"))
    parser.add_argument("--docs", type=Path, help="page whose tables are written anew")
    asked = parser.parse_args()
    parts = [part for part in asked.only.split(",") if part]
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only has {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    figures: dict[str, Any] = json.loads(asked.json.read_text()) if asked.json.is_file() else {"parts": {}}
    figures["machine"] = machine()
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])  # for entrypoints
    wrk()
    for peer in PEERS:
        environment(peer)
    for part in parts:
        PARTS[part](asked, figures["parts"])
        asked.json.write_text(json.dumps(figures, indent=1) + "\n")
    print(report.markdown(figures))
    if asked.docs is not None:
        report.write_docs(figures, asked.docs)
    if set(figures["parts"]) & {NOOP, *REAL}:
        report.draw(figures, asked.plot)
    tell(f"figures: {asked.json}, picture: {asked.plot}")
    return 1 if failed(figures["parts"]) else 0


def tell(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def the(name: str) -> Prepared:
    """A model, prepared once."""
    if name not in known:
        known[name] = prepare(name, tell)
    return known[name]


def noop(asked: argparse.Namespace, into: dict[str, Any]) -> None:
    """The model that does nothing."""
    into[NOOP] = speed.noop(the(NOOP), asked.rounds, asked.seconds, tell)


def real(name: str) -> Callable[[argparse.Namespace, dict[str, Any]], None]:
    """A model of the demo."""

    def run(asked: argparse.Namespace, into: dict[str, Any]) -> None:
        into[name] = speed.real(the(name), asked.rounds, asked.seconds, tell)

    return run


def closed(name: str) -> Callable[[argparse.Namespace, dict[str, Any]], None]:
    """What closed exits and feedback cost a model of the demo."""

    def run(asked: argparse.Namespace, into: dict[str, Any]) -> None:
        into[f"overhead-{name}"] = overhead.feedback(the(name), asked.rounds, asked.seconds, tell)

    return run


def lag(asked: argparse.Namespace, into: dict[str, Any]) -> None:
    """How late the event loop is."""
    rounds = min(asked.rounds, 3)
    into["lag"] = {name: overhead.lag(the(name), rounds, asked.seconds, tell) for name in (NOOP, *REAL)}


def memory(asked: argparse.Namespace, into: dict[str, Any]) -> None:
    """Memory beyond torch."""
    into["memory"] = {NOOP: overhead.memory(the(NOOP), asked.seconds, tell)}


def start(asked: argparse.Namespace, into: dict[str, Any]) -> None:
    """From start to ready."""
    into["start"] = {"text": overhead.start(the("text"), asked.rounds, tell)}


PARTS: dict[str, Callable[[argparse.Namespace, dict[str, Any]], None]] = {
    "noop": noop,
    **{name: real(name) for name in REAL},
    **{f"overhead-{name}": closed(name) for name in REAL},
    "lag": lag,
    "memory": memory,
    "start": start,
}


def failed(parts: dict[str, Any]) -> bool:
    """Whether any request of any server failed."""
    real_ones = [found for name, found in parts.items() if name.removeprefix("overhead-") in REAL]
    found = [*parts.get(NOOP, {}).values(), *real_ones]
    return any(sample["failed"] for one in found for each in one["samples"].values() for sample in each)


def machine() -> str:
    """Processor and cores, without a name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return f"{os.cpu_count()} cores of a shared {model}, Python {sys.version.split()[0]}"


if __name__ == "__main__":
    sys.exit(main())
