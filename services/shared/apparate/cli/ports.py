"""Ports of local mode: which ones it needs, whether they can be had, and who has those that cannot."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from apparate.cli.errors import BAD_INPUT, FAILED, CommandError

HOST = "127.0.0.1"
HIGHEST = 65535
LISTENS = "0A"  # a state, as /proc/net/tcp has it
MOST_OF_A_COMMAND = 80  # characters of another process's command line that are shown


@dataclass(frozen=True)
class Ports:
    """Where local mode listens: the first worker of each model, the others on the numbers above it; the controller.

    None: what the document says, and the controller where `apparate status` looks first. 0: a free one.
    """

    http: int | None = None
    grpc: int | None = None
    controller: int | None = None


FREE = Ports(0, 0, 0)


@dataclass(frozen=True)
class Wanted:
    """A port that a process of local mode will listen on."""

    port: int
    what: str
    """Of which process, as `HTTP of worker m-0`."""
    change: str
    """How the user gets another one."""


@contextlib.contextmanager
def held(wanted: Iterable[Wanted]) -> Iterator[None]:
    """Keep the ports from others until the block ends; nobody is answered there. Raises CommandError for one that
    cannot be had."""
    with contextlib.ExitStack() as sockets:
        for one in wanted:
            if one.port > HIGHEST:
                raise CommandError(f"{_told(one)} is above {HIGHEST}: {one.change}", BAD_INPUT)
            if one.port:
                sockets.enter_context(contextlib.closing(_hold(one)))
        yield


def _hold(one: Wanted) -> socket.socket:
    """A socket that has the port. Raises CommandError."""
    for reuse in (0, 1):  # with 1 others could have it, too: only when old connections on it are not quite over
        found = socket.socket()
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        try:
            found.bind((HOST, one.port))
            return found
        except OSError as error:
            found.close()
            why = error
    if why.errno != errno.EADDRINUSE:
        raise CommandError(f"{_told(one)} cannot be had: {why.strerror}; {one.change}", FAILED)
    who = owner(one.port)
    raise CommandError(f"{_told(one)} is taken{f' by {who}' if who else ''}; {one.change}", FAILED)


def _told(one: Wanted) -> str:
    return f"port {one.port} ({one.what})"


def owner(port: int) -> str:
    """The process that listens on a TCP port here, as `pid 12: python -m http.server`; empty when it cannot be seen."""
    inodes = {f"socket:[{inode}]" for inode in _listening(port)}
    for descriptor in Path("/proc").glob("[0-9]*/fd/*") if inodes else ():
        with contextlib.suppress(OSError):  # of another user, or gone meanwhile
            if str(descriptor.readlink()) in inodes:
                process = descriptor.parent.parent
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                return f"pid {process.name}: {words[:MOST_OF_A_COMMAND]}"
    return ""


def _listening(port: int) -> Iterator[str]:
    """Inodes of sockets that listen on a port."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):  # there is no such file but on Linux
            for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]
