"""Alerts: each fires when it should and is silent when not, in promtool; and each has what a person on call needs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from apparate_cluster import prometheus

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "charts/apparate/files/alerts").glob("*.yaml"))
CASES: dict[str, list[dict[str, Any]]] = yaml.safe_load((Path(__file__).parent / "alerts.yaml").read_text())
ALERTS = {
    rule["alert"]: rule
    for path in FILES
    for group in yaml.safe_load(path.read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
OF_THE_MODEL = 'namespace="shop",model="m"'
SECTIONS = ("**Meaning.**", "**Impact.**", "**Look.**", "**Do.**", "**Silence.**")


def promtool(*arguments: str | Path) -> str:
    """What promtool says; fails when it is not content."""
    done = subprocess.run(
        [prometheus.find("promtool"), *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def a_test(alert: str, case: dict[str, Any]) -> dict[str, Any]:
    """A case as promtool wants it."""
    series = [{"series": name.replace("{M}", OF_THE_MODEL), "values": str(v)} for name, v in case["series"].items()]
    labels = f'alertname="{alert}",alertstate="firing",{case.get("fires", "").replace("{M}", OF_THE_MODEL)}'
    firing = [{"labels": f"ALERTS{{{labels}}}", "value": 1}] if "fires" in case else []
    asked = {"expr": f'ALERTS{{alertname="{alert}",alertstate="firing"}}', "eval_time": case["at"]}
    return {
        "name": f"{alert}: {case['why']}",
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [asked | {"exp_samples": firing}],
    }


@pytest.mark.prometheus
def test_every_rule_file_is_what_prometheus_reads() -> None:
    promtool("check", "rules", *FILES)


@pytest.mark.prometheus
@pytest.mark.parametrize("alert", CASES)
def test_it_fires_when_it_should_and_not_else(alert: str, tmp_path: Path) -> None:
    tests = {
        "rule_files": [str(path) for path in FILES if f"alert: {alert}\n" in path.read_text()],
        "evaluation_interval": "1m",
        "tests": [a_test(alert, case) for case in CASES[alert]],
    }
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(tests))
    promtool("test", "rules", path)


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    assert set(CASES) == set(ALERTS)
    assert [alert for alert, cases in CASES.items() if not any("fires" in case for case in cases)] == []
    assert [alert for alert, cases in CASES.items() if all("fires" in case for case in cases)] == []


@pytest.mark.parametrize("alert", ALERTS)
def test_it_says_what_a_person_on_call_needs(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["for"]
    said = rule["annotations"]
    assert len(said["summary"]) <= 110 and not said["summary"].endswith(".")
    assert said["description"].endswith(".")
    assert said["runbook_url"] == f"docs/runbooks/{alert}.md"


@pytest.mark.parametrize("alert", ALERTS)
def test_its_runbook_has_every_part(alert: str) -> None:
    text = (ROOT / f"docs/runbooks/{alert}.md").read_text()
    assert text.startswith(f"# {alert}\n")
    assert [part for part in SECTIONS if part not in text] == []


@pytest.mark.parametrize("alert", ALERTS)
def test_a_runbook_with_commands_for_a_cluster_says_how_they_are_typed_in_local_mode(alert: str) -> None:
    text = (ROOT / f"docs/runbooks/{alert}.md").read_text()
    said = "In local mode leave away `kubectl` and `--namespace NAMESPACE`" in text.partition("**Meaning.**")[0]
    assert said == ("kubectl apparate" in text)


def test_every_runbook_has_an_alert() -> None:
    pages = {path.stem for path in (ROOT / "docs/runbooks").glob("*.md")} - {"index"}
    assert pages == set(ALERTS)


def test_a_label_that_an_annotation_names_is_one_that_the_alert_has() -> None:
    for alert, rule in ALERTS.items():
        named = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        kept = {name for group in re.findall(r"\bby \(([^)]*)\)", rule["expr"]) for name in group.split(", ")}
        kept |= {"namespace", "model"} if "apparate:" in rule["expr"] else set()
        assert named <= kept, alert


def test_the_docs_list_every_alert_with_its_severity() -> None:
    page = (ROOT / "docs/dashboards.md").read_text()
    listed = dict(re.findall(r"^\| \[(Apparate\w+)\]\(runbooks/\1\.md\) \| (\w+) \|", page, re.MULTILINE))
    assert listed == {alert: rule["labels"]["severity"] for alert, rule in ALERTS.items()}
