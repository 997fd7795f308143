"""Every golden case of the method: worked examples with their expected results, kept as data."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apparate.adaptation import simulate
from apparate.adaptation.adjustment import Profile, adjust, candidates
from apparate.adaptation.baselines.artifact_like import artifact_like
from apparate.adaptation.binomial import certified_count, upper_bound
from apparate.adaptation.certified import accepted
from apparate.adaptation.exits import Replay, replay
from apparate.adaptation.hill_climb import hill_climb
from apparate.adaptation.ramps import even_spacing, next_ramp_utilities, spread, utilities
from apparate.adaptation.scores import margin_error, max_probability_error, normalised_entropy
from apparate.adaptation.sites import cut_vertices
from apparate.adaptation.sweep import sweep
from apparate.adaptation.trigger import RecentAgreement
from apparate.catalog import RampCatalog
from apparate.feedback import Records
from support.brute_force import best_on_grid, exact_optimum

FILE = json.loads((Path(__file__).parent / "golden.json").read_text())
CASES = {case["id"]: case for case in FILE["cases"]}


def close(value: Any) -> Any:
    return pytest.approx(value, abs=1e-6)


def catalog_of(given: dict[str, Any]) -> RampCatalog:
    profile = given["profile"]
    return RampCatalog((1,), [profile["T"]], [profile["o"]], [profile["full"]])


def records_of(table: dict[str, Any], active: list[int] | None = None) -> Records:
    errors, agree = np.array(table["err"], np.float32).T, np.array(table["ok"]).T
    records = Records(errors, agree, np.ones(len(errors), int))
    return records if active is None else records.columns(active)


def assert_replay(found: Replay, expected: dict[str, Any]) -> None:
    assert list(found.exits) == expected["exits"]
    assert found.n == expected.get("n", found.n)
    assert found.wrong == expected.get("disagree", found.wrong)
    assert 1 - found.loss == close(expected["agreement"])
    assert found.mean_ms == close(expected.get("mean_ms", found.mean_ms))
    assert 100 * found.saving == close(expected["saving_pct"])


def test_all_cases_are_here():
    assert FILE["format"] == 1
    assert sorted(CASES) == [f"G{i:02d}" for i in range(1, 27)]


def test_g01_scores_of_one_output():
    probabilities = np.array([CASES["G01"]["input"]["probs"]])
    expected = CASES["G01"]["expected"]
    assert int(probabilities.argmax()) == expected["top1"]
    assert max_probability_error(probabilities)[0] == close(expected["err_maxprob"])
    assert margin_error(probabilities)[0] == close(expected["err_margin"])
    assert normalised_entropy(probabilities)[0] == close(expected["err_entropy"])


def test_g02_inside_a_residual_block_nothing_is_a_site():
    given = CASES["G02"]["input"]
    cuts = cut_vertices([(a, b) for a, b in given["edges"]], given["source"], given["sink"])
    assert sorted(cuts) == CASES["G02"]["expected"]
    assert cuts == ["c1", "add", "relu", "add2", "relu2", "fc"]


@pytest.mark.parametrize("graph", ["whole", "decode_step"])
def test_g03_cross_attention_hides_the_sites_of_a_decoder(graph):
    given = CASES["G03"]["input"]
    cuts = cut_vertices([(a, b) for a, b in given[graph]], given["source"], given["sink"])
    assert sorted(cuts) == CASES["G03"]["expected"][graph]


def test_g04_ramps_within_the_budget_and_their_even_spacing():
    given, expected = CASES["G04"]["input"], CASES["G04"]["expected"]
    catalog = catalog_of(given)
    assert [catalog.max_active_ramps(b) for b in given["budgets"]] == [expected["k_2pct"], expected["k_5pct"]]
    assert catalog.latest_useful() == expected["latest_useful"]
    assert list(even_spacing(catalog, 0.01)) == expected["start_1"]
    assert list(even_spacing(catalog, 0.02)) == expected["start_2"]
    assert list(spread(3, 12)) == expected["start_3_of_12"]


def test_g05_everyone_pays_the_ramps_they_pass():
    given = CASES["G05"]["input"]
    assert catalog_of(given).exit_ms(given["active"])[0].tolist() == close(CASES["G05"]["expected"])


@pytest.mark.parametrize("case", ["G06", "G07", "G08"])
def test_replays(case):
    given = CASES[case]["input"]
    active = given["active"]
    found = replay(records_of(given["table"], active), given["thr"], catalog_of(given), active)
    assert_replay(found, CASES[case]["expected"])


@pytest.mark.parametrize("case", ["G09", "G10", "G11", "G12", "G13", "G14"])
def test_hill_climbs_with_the_steps_of_the_paper(case):
    given, expected = CASES[case]["input"], CASES[case]["expected"]
    expected, active = expected.get("hill", expected), given["active"]
    found = hill_climb(
        records_of(given["table"], active), catalog_of(given), active, given["loss"], first_step=0.1, least_step=0.01
    )
    assert list(found.thresholds) == close(expected["thr"])
    assert list(found.tight.thresholds) == close(expected["tight_thr"])
    assert (found.evals, found.rounds) == (expected["evals"], expected["rounds"])
    assert_replay(found.replay, expected)
    assert_replay(found.tight, expected)


@pytest.mark.parametrize("case", ["G11", "G12"])
def test_the_sweep_finds_the_exact_optimum_and_the_grid_does_not(case):
    given, expected = CASES[case]["input"], CASES[case]["expected"]
    active, records, catalog = given["active"], records_of(given["table"]), catalog_of(given)
    grid = best_on_grid(records, catalog, active, given["loss"], given["grid"])
    assert list(grid.thresholds) == close(expected["grid"]["thr"])
    assert_replay(grid, expected["grid"])
    for found in (
        exact_optimum(records, catalog, active, given["loss"]),
        sweep(records, catalog, active, given["loss"]),
    ):
        assert list(found.thresholds) == close(expected["exact"]["thr"])
        assert_replay(found, expected["exact"])


@pytest.mark.parametrize("number", range(4))
def test_g15_the_released_tuner_has_a_twin(number):
    given, expected = CASES["G15"]["input"], CASES["G15"]["expected"][number]
    case, active = given["cases"][number], given["active"]
    pinned = {int(ramp): threshold for ramp, threshold in case.get("pinned", {}).items()}
    found = artifact_like(records_of(case["table"]), catalog_of(given), active, case["loss"], pinned=pinned)
    assert list(found.replay.thresholds) == close(expected["thr"])
    assert found.moves == expected["moves"]
    assert_replay(found.replay, expected)


@pytest.mark.parametrize("case", ["G16", "G17"])
def test_utilities(case):
    given, expected = CASES[case]["input"], CASES[case]["expected"]
    records, catalog, active = records_of(given["table"]), catalog_of(given), given["active"]
    assert utilities(records, given["thr"], catalog, active).tolist() == close(expected["loo"])
    assert next_ramp_utilities(records, given["thr"], catalog, active).tolist() == close(expected["next"])
    if "replay" in expected:
        assert_replay(replay(records, given["thr"], catalog, active), expected["replay"])


def test_g18_bounds_of_candidates():
    given = CASES["G18"]["input"]
    found = candidates(
        profile_of(given),
        feasible=given["feasible"],
        keep=given["keep"],
        dead=given["dead"],
        rates={int(r): share for r, share in given["rate"].items()},
        rest=given["rest"],
    )
    assert [c.ramp for c in found] == [c["ramp"] for c in CASES["G18"]["expected"]]
    assert [(c.share, c.utility) for c in found] == [
        close((c["share"], c["utility"])) for c in CASES["G18"]["expected"]
    ]


@pytest.mark.parametrize("case", ["G19", "G20", "G21"])
def test_adjustments(case):
    given, expected = CASES[case]["input"], CASES[case]["expected"]
    catalog, active = catalog_of(given), given["active"]
    rates = [given.get("rate", {}).get(str(r), 0.0) for r in active]
    found = adjust(
        profile_of(given),
        feasible=given["feasible"],
        active=active,
        utilities=given["util"],
        rates=[*rates, given.get("rest", 1.0)],
        fits=lambda ramps: catalog.fits(ramps, given["budget"]),
        tolerance=0.0,
    )
    assert found is not None
    assert list(found.active) == expected["active"]
    kept = dict(zip(active, given["thr"], strict=True))
    assert [kept.get(r, 0.0) for r in found.active] == expected["thr"]
    action = {
        "G19": {"drop": list(found.dropped), "add": found.added},
        "G20": {"probe_add": found.added, "before": found.before},
        "G21": {"probe_shift": found.before, "to": found.added},
    }[case]
    assert action == expected["action"]


def profile_of(given: dict[str, Any]) -> Profile:
    profile = given["profile"]
    return Profile(np.array(profile["T"]), np.array(profile["o"]), profile["full"])


def test_g22_one_disagreement_fires_the_trigger_for_16_requests():
    given = CASES["G22"]["input"]
    recent = RecentAgreement(given["loss"], given["size"])
    fired = [i for i, agrees in enumerate(given["agree"]) if recent.observe(agrees)]
    assert fired == CASES["G22"]["expected"]


def test_g23_allowances_of_the_certificate_and_a_walk_along_a_chain():
    given, expected = CASES["G23"]["input"], CASES["G23"]["expected"]
    assert [certified_count(n, given["loss"], given["delta"]) for n in given["n"]] == expected["allow"]
    assert upper_bound(0, 299, given["delta"]) == close(expected["ucb_0_of_299"])
    assert upper_bound(5, 512, given["delta"]) == close(expected["ucb_5_of_512"])
    allowance = certified_count(given["chain_n"], given["loss"], given["delta"])
    assert allowance == expected["walk"]["allowance"]
    assert accepted(np.array(given["chain"]), allowance) == expected["walk"]["accepted"] + 1  # counted, not numbered


def test_g24_batching_by_age_and_by_deadline():
    given, expected = CASES["G24"]["input"], CASES["G24"]["expected"]
    exec_ms = {int(size): ms for size, ms in given["exec_ms"].items()}
    by_age = simulate.serve_by_age(given["arrivals"], exec_ms, max_batch=4, max_wait_ms=20.0)
    by_deadline = simulate.serve_by_deadline(given["arrivals"], exec_ms, objective_ms=25.0)
    for served, wanted in ((by_age, expected["timeout"]), (by_deadline, expected["deadline"])):
        batches = [{"ids": list(b.ids), "start": b.start, "size": b.size, "wait": list(b.wait)} for b in served.batches]
        assert batches == wanted["batches"]
        assert list(served.dropped) == wanted["dropped"]
        assert served.end == wanted["end"]


def test_g25_answers_leave_at_their_ramp_and_the_device_stays_busy():
    given, expected = CASES["G25"]["input"], CASES["G25"]["expected"]
    response, busy_until = simulate.release(
        np.array(given["err"], np.float32).T,
        given["thr"],
        catalog_of(given),
        given["active"],
        start=given["start"],
        arrivals=given["arrivals"],
    )
    assert response.tolist() == close(expected["response_ms"])
    assert busy_until == close(expected["busy_until"])


def test_g26_deep_layers_of_early_tokens_are_deferred():
    given, expected = CASES["G26"]["input"], CASES["G26"]["expected"]
    decoded = simulate.decode(
        given["errs"],
        given["thr"],
        head_ms=given["head_ms"],
        ramp_ms=given["ramp_ms"],
        tail_ms={int(count): ms for count, ms in given["tail_ms"].items()},
        cap=given["cap"],
    )
    assert list(decoded.release) == close(expected["release"])
    assert list(decoded.time_per_token) == close(expected["time_per_token"])
    assert [list(flush) for flush in decoded.flushes] == expected["flushes"]
    assert list(decoded.labelled) == expected["labelled"]
    assert list(decoded.unlabelled) == expected["unlabelled_at_end"]
    assert decoded.busy_until == close(expected["busy_until"])
