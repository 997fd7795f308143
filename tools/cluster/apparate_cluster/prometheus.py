"""Prometheus and Alertmanager as processes on loopback: those on PATH, else Debian's, unpacked beside built tools.

    python -m apparate_cluster.prometheus

fetches what is missing. Unpacked, not installed: an installed package would start services of its own. Only the
templates of Debian's Alertmanager go where it has been built to look for them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from apparate_cluster import debian
from apparate_cluster.binaries import MissingBinary, cache_root
from apparate_cluster.processes import Child, free_ports, until

PACKAGES = ("prometheus", "prometheus-alertmanager")
PROGRAMS = {"prometheus": "prometheus", "promtool": "promtool", "alertmanager": "prometheus-alertmanager"}
TEMPLATES = Path("/usr/share/prometheus/alertmanager")
START_WITHIN_S = 30.0
ASK_WITHIN_S = 20.0


def find(name: str) -> Path:
    """A program: from PATH, else the unpacked one. Raises MissingBinary."""
    for program in (name, PROGRAMS[name]):
        if on_path := shutil.which(program, path=debian.search_path()):
            return Path(on_path)
    path = _unpacked() / PROGRAMS[name]
    if not path.exists():
        raise MissingBinary(f"there is no {name}: make test-tools fetches Debian's, or install it")
    return path


def missing() -> str:
    """What is not there; empty when all is."""
    try:
        for name in PROGRAMS:
            find(name)
    except MissingBinary as error:
        return str(error)
    if find("alertmanager").parent == _unpacked() and not TEMPLATES.exists():
        return f"there is no {TEMPLATES}, which Debian's Alertmanager needs: make test-tools, as root"
    return ""


def fetch() -> str:
    """Get what is missing from Debian's packages; why that failed, or nothing."""
    if not missing():
        return ""
    if not debian.has("apt-get") or not debian.has("dpkg-deb"):
        return "no apt-get here: install Prometheus and Alertmanager"
    _unpacked().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if failure := debian.download(PACKAGES, Path(folder)):
            return failure
        for package in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
        for program in PROGRAMS.values():
            (Path(folder) / "usr/bin" / program).chmod(0o755)
            shutil.move(Path(folder) / "usr/bin" / program, _unpacked() / program)
        if not TEMPLATES.exists():
            with contextlib.suppress(PermissionError):
                shutil.copytree(Path(folder) / TEMPLATES.relative_to("/"), TEMPLATES)
    return missing()


def _unpacked() -> Path:
    return cache_root() / "prometheus-debian"


class Server:
    """One of the two programs, and what it is asked."""

    def __init__(self, child: Child, port: int) -> None:
        self.child, self.url = child, f"http://127.0.0.1:{port}"

    def ask(self, path: str, **query: Any) -> Any:
        """The JSON answer to a GET."""
        with urlopen(f"{self.url}{path}?{urlencode(query)}", timeout=ASK_WITHIN_S) as answer:
            return json.load(answer)

    def query(self, expr: str, **query: Any) -> list[dict[str, Any]]:
        """Series of an instant query."""
        found: list[dict[str, Any]] = self.ask("/api/v1/query", query=expr, **query)["data"]["result"]
        return found

    def _ready(self) -> bool:
        with contextlib.suppress(OSError), urlopen(f"{self.url}/-/ready", timeout=2) as answer:
            return bool(answer.status == 200)
        return False

    def until_ready(self) -> None:
        """Wait. Raises EndedEarly or TimeoutError."""
        until(self._ready, self.child, START_WITHIN_S)


@contextlib.contextmanager
def a_prometheus(
    folder: Path,
    targets: Mapping[str, Sequence[str]],
    *,
    rules: Sequence[Path] = (),
    alertmanager: str = "",
    every: str = "1s",
) -> Iterator[Server]:
    """A Prometheus that scrapes host:port by job, and evaluates rules as often; ended with the block."""
    told: dict[str, Any] = {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [
            {"job_name": job, "honor_labels": True, "static_configs": [{"targets": list(hosts)}]}
            for job, hosts in targets.items()
        ],
    }
    if alertmanager:
        host = alertmanager.removeprefix("http://")
        told["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [host]}]}]}
    config = folder / "prometheus.yaml"
    config.write_text(yaml.safe_dump(told))
    (port,) = free_ports(1)
    command: list[str | Path] = [
        find("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    yield from _running(Child("prometheus", command, log=folder / "prometheus.log"), port)


@contextlib.contextmanager
def an_alertmanager(folder: Path) -> Iterator[Server]:
    """An Alertmanager that keeps alerts to itself; ended with the block."""
    config = folder / "alertmanager.yaml"
    config.write_text(
        yaml.safe_dump({"route": {"receiver": "nobody", "group_wait": "0s"}, "receivers": [{"name": "nobody"}]})
    )
    (port,) = free_ports(1)
    command: list[str | Path] = [
        find("alertmanager"),
        f"--config.file={config}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
        "--log.level=warn",
    ]
    yield from _running(Child("alertmanager", command, log=folder / "alertmanager.log"), port)


def _running(child: Child, port: int) -> Iterator[Server]:
    server = Server(child, port)
    try:
        server.until_ready()
        yield server
    finally:
        child.stop()


def main() -> int:
    """Fetch; a machine that cannot is told, and goes without: the tests that need it say so."""
    if failure := fetch():
        print(f"prometheus: {failure}; tests of alerts are skipped without it", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
