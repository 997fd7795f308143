"""`apparate replay` as a user runs it: a process, its output, its exit status."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from apparate.adaptation.certified import certified
from apparate.cli.main import run
from apparate.contract.recording import recording_of, write_recording
from support.method import even_catalog, noisy_records

CASES = {
    case["id"]: case for case in json.loads((Path(__file__).parents[1] / "golden" / "golden.json").read_text())["cases"]
}


def files_of(folder: Path, records, catalog) -> list[str]:
    """A table whose final answer is always 1, and its catalog; the arguments that name them."""
    table = recording_of(
        {
            "err": records.errors,
            "top1": records.agree.astype(int),
            "final": np.ones(len(records), int),
            "batch": records.batch,
        }
    )
    write_recording(folder / "run.npz", table)
    (folder / "catalog.json").write_text(json.dumps(catalog.to_json()))
    return [str(folder / "run.npz"), "--catalog", str(folder / "catalog.json")]


def golden_files(folder: Path, case: str) -> list[str]:
    given = CASES[case]["input"]
    errors, agree = np.array(given["table"]["err"]).T, np.array(given["table"]["ok"]).T
    table = {"err": errors, "top1": agree.astype(int), "final": np.ones(len(errors), int)}
    np.savez(folder / "run.npz", **table)
    profile = given["profile"]
    catalog = {"batch_sizes": [1], "T": [profile["T"]], "o": [profile["o"]], "full": [profile["full"]]}
    (folder / "catalog.json").write_text(json.dumps(catalog))
    ramps = ",".join(map(str, given["active"]))
    return [str(folder / "run.npz"), "--catalog", str(folder / "catalog.json"), "--ramps", ramps]


def apparate(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from apparate.cli.main import main; main()", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("case", ["G09", "G10", "G11", "G12", "G13", "G14"])
def test_the_hill_climb_agrees_with_the_golden_cases(tmp_path, capsys, case):
    words = golden_files(tmp_path, case)
    expected = CASES[case]["expected"].get("hill", CASES[case]["expected"])
    loss = str(CASES[case]["input"]["loss"])
    assert run(["replay", *words, "--method", "hill_climb", "--budget", loss, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["thresholds"] == expected["tight_thr"]
    assert found["saving"] == pytest.approx(expected["saving_pct"] / 100, abs=1e-8)
    assert found["mean_ms"] == pytest.approx(expected["mean_ms"], abs=1e-6)
    assert found["loss"] == pytest.approx(1 - expected["agreement"], abs=1e-8)
    assert found["exit_rates"] == pytest.approx([count / expected["n"] for count in expected["exits"]])


@pytest.mark.parametrize("case", ["G11", "G12"])
def test_the_sweep_agrees_with_the_exact_optimum_of_the_golden_cases(tmp_path, case):
    words = golden_files(tmp_path, case)
    done = apparate("replay", *words, "--method", "sweep", "--budget", str(CASES[case]["input"]["loss"]), "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    found, expected = json.loads(done.stdout), CASES[case]["expected"]["exact"]
    assert found["thresholds"] == expected["thr"]
    assert found["saving"] == pytest.approx(expected["saving_pct"] / 100, abs=1e-8)
    assert (found["certified"], found["upper_bound"]) == (False, None)
    assert found["seconds"] > 0


def test_certified_is_the_default_and_equals_the_tuner(tmp_path):
    records, catalog = noisy_records(1, 2000, 3, batch_sizes=(1, 3)), even_catalog(3, batch_sizes=(1, 4))
    done = apparate("replay", *files_of(tmp_path, records, catalog), "--budget", "0.02", "--json", "-")
    assert done.returncode == 0, done.stderr
    found, expected = json.loads(done.stdout), certified(records, catalog, range(3), 0.02, 0.95)
    assert tuple(found["thresholds"]) == expected.thresholds
    assert (found["certified"], found["upper_bound"]) == (True, expected.upper_bound)
    assert found["loss"] <= 0.02 and found["upper_bound"] <= 0.02


def test_json_goes_to_a_file_and_a_table_to_the_output(tmp_path, capsys):
    words = files_of(tmp_path, noisy_records(1, 500, 2), even_catalog(2))
    assert run(["replay", *words, "--budget", "0.05", "--json", str(tmp_path / "out.json")]) == 0
    assert json.loads((tmp_path / "out.json").read_text())["records"] == 500
    assert capsys.readouterr().out == ""
    assert run(["replay", *words, "--budget", "0.05"]) == 0
    told = capsys.readouterr().out
    assert "threshold" in told and "saving" in told and "certified: loss at most" in told


def test_a_recording_that_brings_its_catalog_needs_no_other(tmp_path, capsys):
    records = noisy_records(1, 60, 2)
    np.savez(
        tmp_path / "run.npz",
        err=records.errors,
        top1=records.agree.astype(int),
        final=np.ones(60, int),
        catalog=np.array(json.dumps(even_catalog(2).to_json())),
    )
    assert run(["replay", str(tmp_path / "run.npz"), "--method", "sweep", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["ramps"] == [0, 1]


def test_requests_without_feedback_of_all_ramps_are_left_out_and_counted(tmp_path, capsys):
    words = files_of(tmp_path, noisy_records(1, 60, 3), even_catalog(3))
    with np.load(tmp_path / "run.npz") as file:
        table = dict(file)
    table["err"][:20, 1], table["top1"][:20, 1] = np.nan, -1
    np.savez(tmp_path / "run.npz", **table)
    for ramps, skipped in (("0,1,2", 20), ("0,2", 0)):
        assert run(["replay", *words, "--method", "sweep", "--ramps", ramps, "--json", "-"]) == 0
        assert json.loads(capsys.readouterr().out)["skipped"] == skipped


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--budget", "1.5"], "budget is 1.5, must be 0..1"),
        (["--budget", "nan"], "budget is nan"),
        (["--confidence", "1"], "confidence is 1.0, must be between 0 and 1"),
        (["--method", "guess"], "guess"),
        (["--ramps", "0,9"], "ramp 9 is not recorded; there are 0, 1"),
        (["--ramps", "one"], "ramps are 'one'"),
        (["--ramps", ""], "ramps are ''"),
        (["--first-step", "0"], "first step is 0.0"),
    ],
)
def test_wrong_options_end_with_one_line_and_status_2(tmp_path, capsys, words, told):
    assert run(["replay", *files_of(tmp_path, noisy_records(1, 60, 2), even_catalog(2)), *words]) == 2
    output = capsys.readouterr()
    assert told in output.err and output.err.count("\n") == 1 and not output.out


def test_a_table_and_a_catalog_of_different_ramps_do_not_go_together(tmp_path):
    done = apparate("replay", *files_of(tmp_path, noisy_records(1, 60, 2), even_catalog(3)), "--json", "-")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: the recording has 2 ramps, the catalog has 3\n"


def test_a_damaged_table_ends_with_one_line_and_status_2(tmp_path):
    words = files_of(tmp_path, noisy_records(1, 600, 2), even_catalog(2))
    table = tmp_path / "run.npz"
    table.write_bytes(table.read_bytes()[:-100])
    done = apparate("replay", *words, "--json", "-")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {table}: neither a whole .npz nor Parquet\n"


@pytest.mark.parametrize("missing", ["run.npz", "catalog.json"])
def test_a_missing_file_ends_with_one_line_and_status_2(tmp_path, capsys, missing):
    words = files_of(tmp_path, noisy_records(1, 60, 2), even_catalog(2))
    (tmp_path / missing).unlink()
    assert run(["replay", *words]) == 2
    assert missing in capsys.readouterr().err
