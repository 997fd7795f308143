"""Grafana's dashboards of the chart, from the panels in `boards`."""

from __future__ import annotations

from boards import capacity, control_plane, feedback, model, overview
from panels import to_json

FOLDER = "charts/apparate/files/dashboards"
BOARDS = (overview.BOARD, model.BOARD, control_plane.BOARD, feedback.BOARD, capacity.BOARD)
OPTIONAL = "there only with spec.serving.responseCache"
INTERNAL: dict[str, str] = {
    "apparate_cache_hits": OPTIONAL,
    "apparate_cache_misses": OPTIONAL,
    "apparate_cache_bytes": OPTIONAL,
}
"""Metrics that are on no dashboard, and why."""


def render() -> dict[str, str]:
    """{path: text} of the files."""
    return {f"{FOLDER}/{board.name}.json": to_json(board) for board in BOARDS}
