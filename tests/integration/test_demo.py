"""The whole demo on a small scenario: real workers, controller, Redis and client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from apparate_demo.assets import asset
from apparate_demo.loaders import video_frames

pytestmark = pytest.mark.redis

REQUIRED = {
    "model": str,
    "vanilla": dict,
    "apparate": dict,
    "saving_p50": float,
    "agreement": float,
    "agreement_lower": float,
    "budget": float,
    "plans": int,
    "records": int,
    "exit_rates": dict,
}


@pytest.fixture(scope="module")
def frames(tmp_path_factory) -> Path:
    """Every other frame of the walkers: both answers occur."""
    path = tmp_path_factory.mktemp("frames") / "frames.npz"
    np.savez(path, x=video_frames(asset("one-by-one-person-detection.mp4"), 96)[::2])
    return path


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "apparate.cli", "demo", *arguments]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environ)


@pytest.fixture(scope="module")
def run(frames, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    arguments = [
        "--data",
        str(frames),
        "--seconds",
        "6",
        "--workdir",
        str(out / "work"),
        "--record",
        str(out / "r.npz"),
    ]
    done = demo(*arguments, "--json", str(out / "demo.json"), "--plot", str(out / "demo.png"))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((out / "demo.json").read_text()), done.stdout, out


@pytest.mark.timeout(300)
def test_the_report_has_what_scripts_read(run):
    report, _, _ = run
    assert {k: type(report[k]) for k in REQUIRED} == REQUIRED


@pytest.mark.timeout(300)
def test_both_sides_have_the_same_figures(run):
    report, _, _ = run
    expected = {"p25_ms", "p50_ms", "p95_ms", "p99_ms", "throughput_rps"}
    assert set(report["vanilla"]) == set(report["apparate"]) == expected


@pytest.mark.timeout(300)
def test_every_request_is_answered_and_reported(run):
    report, _, _ = run
    assert report["errors"] == 0 and report["records"] == report["n"] > 0


@pytest.mark.timeout(300)
def test_client_and_worker_count_the_same_disagreements(run):
    report, _, _ = run
    assert report["feedback_agreement"] == pytest.approx(report["agreement"], abs=1e-9)


@pytest.mark.timeout(300)
def test_exit_rates_sum_to_one(run):
    report, _, _ = run
    assert sum(report["exit_rates"].values()) == pytest.approx(1.0)


@pytest.mark.timeout(300)
def test_the_table_names_budget_and_machine(run):
    _, text, _ = run
    assert "budget" in text and "Machine:" in text


@pytest.mark.timeout(300)
def test_picture_and_recording_are_written(run):
    _, _, out = run
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "r.npz").is_file() and (out / "r.catalog.json").is_file()


@pytest.mark.timeout(300)
def test_the_mode_compact_is_served_and_told(run, frames, tmp_path):
    _, _, out = run
    done = demo(
        "--data",
        str(frames),
        "--seconds",
        "4",
        "--mode",
        "compact",
        "--workdir",
        str(out / "work"),
        "--json",
        str(tmp_path / "demo.json"),
        "--no-plot",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "demo.json").read_text())
    assert report["mode"] == "compact" and "Mode compact: " in done.stdout
    modes = [
        yaml.safe_load((out / "work" / name).read_text())["spec"]["serving"]["mode"]
        for name in ("model.yaml", "plain.yaml")
    ]
    assert modes == ["compact", "compact"]  # nothing leaves early in the plain one, so it is whole all the same
    assert report["errors"] == 0 and report["exit_rates"].keys() >= {"final"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", "speech"], "vision, text, cifar"),
        (["--protocol", "smoke"], "http, grpc"),
        (["--mode", "sparse"], "report, compact"),
        (["--model", "cifar"], "--data FOLDER"),
        (["--data", "/nowhere.mp4"], "/nowhere.mp4 does not exist"),
    ],
)
def test_bad_arguments_are_one_clear_line(arguments, told, tmp_path):
    done = demo(*arguments, "--workdir", str(tmp_path))
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr
