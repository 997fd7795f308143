"""The servers as processes: started, asked until they answer rightly, loaded by wrk, ended."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from environments import CACHE, HERE, PACKAGES, environment, wrk
from models import BATCH, NOOP, Prepared
from traffic import BASE64, BINARY, COUNT, JSON, RAW, Traffic

from apparate.service.child import spawn
from apparate.service.redis_server import free_port

READY_WITHIN_S = 30.0
CHECKED = 3  # answers that are compared before and after each load
TOLERANCE = 1e-3  # of scores; batches of another size may differ in the last digits
OURS = "apparate"
IMAGE_FORMS = {OURS: BINARY, "kserve": BINARY, "mlserver": BASE64, "litserve": BASE64, "mosec": RAW}


class WrongAnswer(RuntimeError):
    """A server answered something else than the model says."""


@dataclass
class Server:
    """One server of one model."""

    name: str
    popen: subprocess.Popen[bytes]
    port: int
    path: str
    traffic: Traffic
    form: str
    connections: tuple[int, ...] = ()
    folder: Path = field(init=False)
    headers: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.folder = CACHE / "bodies" / self.traffic.model / self.form
        self.headers = self.traffic.write(self.folder, self.form)

    def wait(self) -> None:
        """Until it answers rightly. Raises RuntimeError when it ends or takes too long."""
        give_up = time.monotonic() + READY_WITHIN_S
        while True:
            if self.popen.poll() is not None:
                raise RuntimeError(f"{self.name} ended with status {self.popen.returncode} while it started")
            try:
                return self.check()
            except (OSError, http.client.HTTPException, WrongAnswer) as error:
                if time.monotonic() > give_up:
                    raise RuntimeError(f"{self.name} is not ready after {READY_WITHIN_S:.0f} s: {error}") from error
            time.sleep(0.2)

    def check(self) -> None:
        """Compare a few answers with the model's own. Raises WrongAnswer and OSError."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection):
            for row in range(CHECKED):
                body, headers = self.traffic.body(row, self.form)
                connection.request("POST", self.path, body, headers)
                answer = connection.getresponse()
                content = answer.read()
                if answer.status != 200:
                    raise WrongAnswer(f"{self.name} answered {answer.status}: {content[:200]!r}")
                scores = np.array(json.loads(content)["outputs"][0]["data"], np.float32).reshape(-1)
                if not np.allclose(scores, self.traffic.scores[row], atol=TOLERANCE):
                    raise WrongAnswer(f"{self.name} says {scores.tolist()}, not {self.traffic.scores[row].tolist()}")

    def load(self, connections: int, seconds: int) -> dict[str, float]:
        """What wrk measured over so many connections, each with one request under way; answers are compared after it.

        Also the cores that the server's processes used.
        """
        headers = [text for pair in self.headers.items() for text in pair]
        script = ["-s", str(HERE / "wrk.lua"), f"http://127.0.0.1:{self.port}", "--"]
        command = [wrk(), "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", *script]
        command += [self.path, str(self.folder), str(COUNT), *headers]
        before = cpu_s(self.popen.pid)
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        used = cpu_s(self.popen.pid) - before
        line = next(line for line in told.splitlines() if line.startswith("RESULT "))
        found: dict[str, float] = json.loads(line.removeprefix("RESULT "))
        self.check()
        return found | {"cores": used / found["seconds"]}

    def stop(self) -> None:
        """End it with all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def cpu_s(session: int) -> float:
    """CPU time that the processes of a session have used so far."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def form_of(server: str, model: str) -> str:
    """The form of a request that a server reads fastest."""
    return IMAGE_FORMS[server.partition(" ")[0]] if model == "vision" else JSON


def start_worker(
    model: Prepared, traffic: Traffic, *, name: str = OURS, module: str = "apparate_worker", **settings: str
) -> Server:
    """One worker of ours. Without settings it serves the plain model, and no Redis is there."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("EEM_")}
    environ |= {
        "EEM_WORKER_DOCUMENT": str(model.file),
        "EEM_WORKER_HTTP_PORT": "0",
        "EEM_WORKER_GRPC_PORT": "0",
        "EEM_WORKER_LOG_LEVEL": "WARNING",
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
        **settings,
    }
    popen = spawn([sys.executable, "-m", module], environ=environ, stdout=subprocess.PIPE)
    assert popen.stdout is not None
    line = popen.stdout.readline()
    if not line:
        raise RuntimeError(f"the worker ended with status {popen.wait()} while it started")
    port = int(json.loads(line)["http"].rpartition(":")[2])
    path = f"/v2/models/{model.document.model.metadata.name}/infer"
    server = Server(name, popen, port, path, traffic, form_of(OURS, model.name))
    server.wait()
    return server


def start_peer(name: str, model: Prepared, traffic: Traffic, log: Path, **settings: str) -> Server:
    """A peer: `litserve`, or with words behind its name that tell several settings of it apart."""
    peer, port = name.partition(" ")[0], free_port()
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE / "peers"), str(HERE.parent.parent / "demo")]),
        "BENCH_PORT": str(port),
        "BENCH_BATCH": str(BATCH),
        "OMP_NUM_THREADS": "1",
        **settings,
    }
    if model.name != NOOP:
        environ |= {"BENCH_ENTRYPOINT": model.entrypoint, "BENCH_WEIGHTS": str(model.weights)}
        environ |= {"BENCH_INPUTS": ",".join(model.inputs), "BENCH_TORCH": PACKAGES}
    form = form_of(name, model.name)
    if form == RAW:
        environ["BENCH_RAW"] = "1"
    command, path = COMMANDS[peer](environ)
    with log.open("ab") as out:
        popen = spawn([str(environment(peer)), *command], environ=environ, stdout=out, stderr=out)
    return Server(name, popen, port, path, traffic, form)


def _kserve(environ: dict[str, str]) -> tuple[list[str], str]:
    return [str(HERE / "peers" / "kserve_server.py")], "/v2/models/model/infer"


def _litserve(environ: dict[str, str]) -> tuple[list[str], str]:
    return [str(HERE / "peers" / "litserve_server.py")], "/predict"


def _mosec(environ: dict[str, str]) -> tuple[list[str], str]:
    script = str(HERE / "peers" / "mosec_server.py")
    socket = str(CACHE / f"mosec-{environ['BENCH_PORT']}")
    return [script, "--address", "127.0.0.1", "--port", environ["BENCH_PORT"], "--path", socket], "/inference"


def _mlserver(environ: dict[str, str]) -> tuple[list[str], str]:
    folder = CACHE / f"mlserver-{environ['BENCH_PORT']}"
    folder.mkdir(parents=True, exist_ok=True)
    batch = int(environ["BENCH_BATCH"])
    settings: Mapping[str, Any] = {
        "debug": False,
        "host": "127.0.0.1",
        "http_port": int(environ["BENCH_PORT"]),
        "grpc_port": free_port(),
        "metrics_port": free_port(),
        "metrics_dir": str(folder),
        "parallel_workers": int(environ.get("BENCH_PARALLEL", "0")),
    }
    model: dict[str, Any] = {"name": "model", "implementation": "mlserver_model.Served"}
    if batch > 1:
        model |= {"max_batch_size": batch, "max_batch_time": 0.001}
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "model-settings.json").write_text(json.dumps(model))
    return ["-m", "mlserver.cli.main", "start", str(folder)], "/v2/models/model/infer"


COMMANDS = {"kserve": _kserve, "litserve": _litserve, "mosec": _mosec, "mlserver": _mlserver}
