"""What a cluster is given of the vision scenario."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from apparate_demo.models.mobilenet import load
from apparate_demo.traffic.materials import SHARPER, Folder, plain_labels, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    folder = Folder(tmp_path_factory.mktemp("materials"))
    write(folder)
    return folder


def test_every_frame_has_the_plain_models_answer(folder: Folder):
    traffic, plain = folder.load()
    assert len(traffic) == len(plain) > 1000 and set(plain) == {0, 1}
    some = traffic.arrays["image"][100:103]
    assert list(plain_labels(folder.model, some)) == plain[100:103].tolist()


def test_frames_that_ramps_are_trained_on_are_not_sent(folder: Folder):
    sent = {frame.tobytes() for frame in folder.load()[0].arrays["image"]}
    with np.load(folder.inputs) as inputs:
        assert len(inputs["image"]) > 200 and not {frame.tobytes() for frame in inputs["image"]} <= sent


def test_the_other_model_has_the_same_answers_with_other_scores(folder: Folder):
    frames = torch.from_numpy(folder.load()[0].arrays["image"][:8])
    with torch.inference_mode():
        one, other = load(folder.model)(frames), load(folder.sharper)(frames)
    torch.testing.assert_close(other, one * SHARPER)


def test_the_damaged_file_cannot_be_read(folder: Folder):
    with pytest.raises(Exception, match=r"[Hh]eader|buffer|invalid|Metadata"):
        load(folder.damaged)


def test_what_is_there_is_not_written_again(folder: Folder):
    before = folder.traffic.stat().st_mtime_ns
    write(folder)
    assert folder.traffic.stat().st_mtime_ns == before
