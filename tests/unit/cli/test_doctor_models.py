"""What the doctor says of a model whose workers run its plan: pause, loss, and whether anything can leave early."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from apparate.adaptation import policy
from apparate.cli.doctor_models import AT_RISK, in_a_cluster, locally, of_model
from apparate.cli.findings import runbook
from apparate.cli.target import DEFAULT_URL
from apparate.cli.target_cluster import described

ROOT = Path(__file__).resolve().parents[3]
LOCAL = locally(DEFAULT_URL)


def a_model(**more: Any) -> dict[str, Any]:
    """A model that is well."""
    return {
        "namespace": "default",
        "name": "hello",
        "plan": {"revision": 3, "ramps": [{"ramp": 1, "threshold": 0.2}]},
        "window": {"records": 8192, "size": 8192},
        "observed": {"samples": 8192, "loss": 0.004, "exitRate": 0.5},
        "budget": {"accuracyLoss": 0.01, "rampOverhead": 0.02, "confidence": 0.95},
        "decisions": [{"reason": "Unchanged", "message": "thresholds stay"}],
        **more,
    }


def verdict_of(**more: Any) -> str:
    return of_model(a_model(**more), "2 workers", LOCAL).verdict


def test_a_model_that_is_well_is_ok_and_needs_nothing() -> None:
    found = of_model(a_model(), "2 workers", LOCAL)
    assert (found.verdict, found.told, found.next) == ("ok", "2 workers", "")


def test_a_paused_model_is_no_fault_and_says_since_when_by_whom_and_how_it_ends() -> None:
    paused = a_model(paused=True, pausedSince="2026-01-01T00:00:00Z", pausedBy="alice@desk")
    found = of_model(paused, "2 workers", LOCAL)
    assert (found.verdict, found.told) == ("warn", "paused since 2026-01-01T00:00:00Z, by alice@desk; 2 workers")
    assert "`apparate resume hello`" in found.next
    elsewhere = of_model(paused, "", locally("http://127.0.0.1:9000"))
    assert "`apparate resume hello --url http://127.0.0.1:9000`" in elsewhere.next
    assert "`kubectl apparate resume hello -n default`" in of_model(paused, "", in_a_cluster).next


def test_a_paused_model_above_its_budget_is_a_fault_and_both_are_told() -> None:
    found = of_model(a_model(paused=True, observed={"samples": 5000, "loss": 0.02}), "", LOCAL)
    assert found.verdict == "fail"
    assert "paused" in found.told and "above the accuracy budget: 2.0 %" in found.told


@pytest.mark.parametrize(
    ("loss", "verdict", "page"),
    [
        (0.0079, "ok", ""),
        (0.0081, "warn", runbook("ApparateAccuracyBudgetAtRisk")),
        (0.01, "warn", runbook("ApparateAccuracyBudgetAtRisk")),
        (0.0101, "fail", runbook("ApparateAccuracyBudgetBroken")),
    ],
)
def test_the_loss_is_judged_by_the_budget(loss: float, verdict: str, page: str) -> None:
    found = of_model(a_model(observed={"samples": 5000, "loss": loss}), "", LOCAL)
    assert (found.verdict, found.next) == (verdict, page)


def test_a_loss_of_few_answers_says_nothing() -> None:
    needed = policy.least_records(policy.Budget(0.01, 0.02, 0.95))
    assert verdict_of(observed={"samples": needed - 1, "loss": 0.5}) == "ok"
    assert verdict_of(observed={"samples": needed, "loss": 0.5}) == "fail"


def test_the_share_at_risk_is_that_of_the_alert() -> None:
    groups = yaml.safe_load((ROOT / "charts/apparate/files/alerts/accuracy.yaml").read_text())["groups"]
    rules = {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}
    found = re.search(r"> ([\d.]+) \* max by", rules["ApparateAccuracyBudgetAtRisk"])
    assert found is not None and math.isclose(float(found[1]), AT_RISK)


def test_a_window_too_small_for_the_budget_warns_with_the_least_that_would_do() -> None:
    budget = {"accuracyLoss": 0.001, "rampOverhead": 0.02, "confidence": 0.95}
    needed = policy.least_records(policy.Budget(0.001, 0.02, 0.95))
    found = of_model(a_model(budget=budget, window={"records": 10, "size": 512}, observed={}), "", LOCAL)
    assert (found.verdict, "nothing can ever leave early" in found.told) == ("warn", True)
    assert f"raise spec.adaptation.window to {needed} or more" in found.next
    assert "spec.budget.accuracyLoss" in found.next
    assert verdict_of(budget=budget, window={"records": 10, "size": needed}, observed={}) == "ok"


def test_a_full_window_that_is_not_enough_never_will_be() -> None:
    """As where few of the answers are checked, which needs more records than the budget alone."""
    waiting = [{"reason": "NotEnoughFeedback", "message": "512 records, 600 needed"}]
    assert verdict_of(decisions=waiting, window={"records": 512, "size": 512}, observed={}) == "warn"
    assert verdict_of(decisions=waiting, window={"records": 511, "size": 512}, observed={}) == "ok"


def test_closed_exits_are_fine_before_there_is_feedback_and_told_after() -> None:
    closed = {"revision": 1, "ramps": [{"ramp": 1, "threshold": 0.0}]}
    early = of_model(a_model(plan=closed, observed={"samples": 0}), "1 workers", LOCAL)
    assert (early.verdict, early.told) == ("ok", "1 workers")
    assert early.next.startswith("send requests")
    late = of_model(a_model(plan=closed), "", LOCAL)
    assert (late.verdict, late.next) == ("warn", runbook("ApparateNoExits"))


def test_no_ramp_and_closed_guards_are_told() -> None:
    assert verdict_of(plan={"revision": 1, "ramps": []}) == "warn"
    assert verdict_of(guarded=1) == "warn"


def test_a_model_of_a_cluster_is_judged_by_its_window_too() -> None:
    thing = {
        "metadata": {"namespace": "default", "name": "hello"},
        "spec": {"budget": {"accuracyLoss": 0.001}, "adaptation": {"window": 512}},
        "status": {"plan": {"revision": 1, "ramps": [{"ramp": 0, "threshold": 0.0}]}},
    }
    assert "can ever leave early" in of_model(described(thing), "", in_a_cluster).told


def test_every_page_that_the_doctor_names_is_there() -> None:
    folder = ROOT / "services/shared/apparate/cli"
    named = {name for path in folder.glob("doctor*.py") for name in re.findall(r'runbook\("(\w+)"', path.read_text())}
    assert len(named) >= 4
    assert [name for name in sorted(named) if not (ROOT / f"docs/runbooks/{name}.md").is_file()] == []
