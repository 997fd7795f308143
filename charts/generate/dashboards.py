"""Grafana's dashboards of the chart, from the panels in `boards`."""

from __future__ import annotations

from boards import capacity, control_plane, feedback, model, overview
from panels import to_json

FOLDER = "charts/apparate/files/dashboards"
BOARDS = (overview.BOARD, model.BOARD, control_plane.BOARD, feedback.BOARD, capacity.BOARD)
INTERNAL: dict[str, str] = {}
"""Metrics that are on no dashboard, and why."""


def render() -> dict[str, str]:
    """{path: text} of the files."""
    return {f"{FOLDER}/{board.name}.json": to_json(board) for board in BOARDS}
