"""Pages of the documentation that are made from the chart: its values, and an index of its alerts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from reference import table

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "charts" / "apparate" / "files" / "alerts"
TEMPLATE = {"{{ $labels.namespace }}/{{ $labels.model }}": "a model", ": {{ $labels.reason }}": ""}


def alerts_page() -> str:
    """Every alert with its severity, in the order of severity and name, and a link to its runbook."""
    found = [rule for path in sorted(ALERTS.glob("*.yaml")) for rule in _rules(path) if "alert" in rule]
    found.sort(key=lambda rule: (rule["labels"]["severity"] != "critical", rule["alert"]))
    rows = [
        (f"[{rule['alert']}]({rule['alert']}.md)", rule["labels"]["severity"], _words(rule["annotations"]["summary"]))
        for rule in found
    ]
    return (
        "# Runbooks\n\nOne page for each alert: what it means, what it costs users, what to look at, what to do, how "
        "to silence it. `critical` wakes somebody, `warning` can wait for the day.\n\nIn local mode leave away "
        "`kubectl` and `--namespace NAMESPACE` from the commands: `kubectl apparate status` is `apparate status` "
        "there. `apparate doctor` names the page that a fault belongs to.\n\n"
        + table(("alert", "severity", "in a sentence"), rows)
    )


def values_page() -> str:
    """The chart's values, as its README has them."""
    readme = (ROOT / "charts" / "apparate" / "README.md").read_text()
    return f"# Values of the chart\n\n{readme.partition('## Values')[2].lstrip()}"


def _rules(path: Path) -> list[dict[str, Any]]:
    content = yaml.safe_load(path.read_text())
    return [rule for group in content["groups"] for rule in group["rules"]]


def _words(summary: str) -> str:
    for there, words in TEMPLATE.items():
        summary = summary.replace(there, words)
    return summary[0].upper() + summary[1:]
