"""Scenarios: valid documents, bootstrap data apart from the traffic, written once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from apparate.contract.document import load_documents
from apparate_demo.loaders import InvalidData
from apparate_demo.oip import Traffic
from apparate_demo.scenarios import SCENARIOS
from apparate_demo.scenarios.scenario import write


@pytest.fixture
def frames(tmp_path):
    """An .npz of 600 frames, each of one colour that tells its place."""
    values = np.arange(600)
    pixels = np.zeros((600, 96, 96, 3), np.uint8)
    pixels[:, 0, 0, 0], pixels[:, 0, 0, 1] = values // 256, values % 256
    np.savez(tmp_path / "frames.npz", x=pixels)
    return tmp_path / "frames.npz"


def places(path, name):
    with np.load(path) as file:
        pixels = file[name][:, 0, 0].astype(int)
    return (pixels[:, 0] * 256 + pixels[:, 1]).tolist()


def test_frames_that_train_the_ramps_are_not_served(tmp_path, frames):
    workspace = write(SCENARIOS["vision"], tmp_path / "work", frames)
    trained, served = places(tmp_path / "work/bootstrap.npz", "image"), places(workspace.traffic_path, "image")
    assert sorted(trained + served) == list(range(600)) and served == sorted(served)


def test_the_plain_document_differs_in_name_and_policy_only(tmp_path, frames):
    workspace = write(SCENARIOS["vision"], tmp_path / "work", frames)
    exits, plain = workspace.document.model, workspace.plain.model
    assert plain.spec.adaptation.policy == "never"
    assert plain.spec.model == exits.spec.model and plain.spec.serving == exits.spec.serving


def test_what_a_scenario_says_of_the_spec_is_in_both_documents(tmp_path, frames):
    scenario = replace(SCENARIOS["vision"], spec={"budget": {"rampOverhead": 0.05}, "serving": {"maxBatch": 4}})
    workspace = write(scenario, tmp_path / "work", frames)
    for spec in (workspace.document.model.spec, workspace.plain.model.spec):
        assert (spec.budget.ramp_overhead, spec.serving.max_batch) == (0.05, 4)


def test_a_workspace_has_its_own_weights_and_outlasts_the_checkout(tmp_path, frames):
    workspace = write(SCENARIOS["vision"], tmp_path / "work", frames)
    moved = tmp_path / "moved"
    (tmp_path / "work").rename(moved)
    document = load_documents(moved / workspace.document_path.name)[0]
    assert document.source.is_relative_to(moved)
    assert document.source.is_file()


def test_a_workspace_is_written_once_for_the_same_data(tmp_path, frames):
    first = write(SCENARIOS["vision"], tmp_path / "work", frames).traffic_path.stat().st_mtime_ns
    assert write(SCENARIOS["vision"], tmp_path / "work", frames).traffic_path.stat().st_mtime_ns == first


def test_too_few_frames_are_refused(tmp_path):
    np.savez(tmp_path / "few.npz", x=np.zeros((8, 96, 96, 3), np.uint8))
    with pytest.raises(InvalidData, match="8 frames"):
        write(SCENARIOS["vision"], tmp_path / "work", tmp_path / "few.npz")


def test_sentences_are_served_without_their_padding(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"text": "a very very good film indeed"}\n{"text": "bad"}\n')
    traffic = Traffic.load(write(SCENARIOS["text"], tmp_path / "work", tmp_path / "t.jsonl").traffic_path)
    lengths = [traffic.item(i)["input_ids"].shape for i in range(2)]
    assert lengths[0][1] > lengths[1][1] and all(traffic.item(i)["attention_mask"].all() for i in range(2))


@pytest.mark.parametrize("data", [None, "there"])
def test_the_cifar_scenario_says_what_its_folder_must_hold(tmp_path, data):
    with pytest.raises(InvalidData, match="resnet56_cifar10"):
        write(SCENARIOS["cifar"], tmp_path / "work", tmp_path if data else None)
