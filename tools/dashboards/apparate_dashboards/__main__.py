"""Draw the dashboards: `python -m apparate_dashboards`; see the package."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from pathlib import Path

from apparate_cluster.binaries import MissingBinary
from apparate_cluster.prometheus import Server, a_prometheus
from apparate_dashboards.draw import draw
from apparate_dashboards.pages import Span, ask, read

ROOT = Path(__file__).resolve().parents[3]
BOARDS = ROOT / "charts" / "apparate" / "files" / "dashboards"
RULES = ROOT / "charts" / "apparate" / "files" / "alerts"


class Elsewhere(Server):
    """A Prometheus that somebody else runs."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")


def main() -> int:
    """Run, ask, draw, and say which panels are empty."""
    parser = argparse.ArgumentParser(prog="make dashboards", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/dashboards"), help="folder for the pictures")
    parser.add_argument("--seconds", type=float, default=90.0, help="length of the run")
    parser.add_argument("--models", default="vision,text", help="scenarios of the demo that serve")
    parser.add_argument("--operator", action="store_true", help="also an operator on a real Kubernetes API")
    parser.add_argument("--prometheus", default="", help="URL of a Prometheus: no run of our own, its last hour")
    given = parser.parse_args()
    if given.prometheus:
        now = time.time()
        look(Elsewhere(given.prometheus), Span(now - 3600, now), {"rate_interval": "1m"}, given.out)
        return 0
    try:
        run(given)
    except MissingBinary as error:
        print(f"dashboards: {error}", file=sys.stderr)
        return 1
    return 0


def run(given: argparse.Namespace) -> None:
    """A run of our own, looked at when its traffic ends."""
    from apparate_dashboards.live import a_run, an_operator_at_work

    def tell(text: str) -> None:
        print(f"dashboards: {text}", flush=True)

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        targets: dict[str, list[str]] = {}
        if given.operator:
            targets |= stack.enter_context(an_operator_at_work())
        run, _ = stack.enter_context(a_run(given.models.split(","), given.seconds, folder, tell))
        targets |= run
        rules = sorted(RULES.glob("*.yaml"))
        server = stack.enter_context(a_prometheus(folder, targets, rules=rules))
        start = time.time()
        time.sleep(given.seconds)
        look(server, Span(start, time.time()), {"rate_interval": "10s"}, given.out)


def look(server: Server, span: Span, choices: dict[str, str], out: Path) -> None:
    """Ask and draw every dashboard."""
    names = sorted({one["metric"]["model"] for one in server.query("apparate_ready")})
    for path in sorted(BOARDS.glob("*.json")):
        board = read(path)
        several = not any(v["name"] == "model" and not v.get("multi") for v in board["templating"]["list"])
        for name in [".*"] if several else names[:1]:
            page = ask(server, board, span, {"namespace": ".*", "model": name, **choices})
            draw(page, span, out / f"{path.stem}.png")
            empty = [one.panel["title"] for one in page.panels if one.empty]
            print(f"dashboards: {out / path.stem}.png: {len(page.panels)} panels; empty: {', '.join(empty) or 'none'}")


if __name__ == "__main__":
    sys.exit(main())
