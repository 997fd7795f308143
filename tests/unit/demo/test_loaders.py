"""Traffic from a user's own files, and what is said when it cannot be used."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from apparate_demo import loaders


def test_a_folder_of_images_is_read_in_the_order_of_names(tmp_path):
    for name, value in (("b.png", 200), ("a.png", 10)):
        Image.new("RGB", (40, 20), (value,) * 3).save(tmp_path / name)
    assert loaders.images(tmp_path, 8)[:, 0, 0, 0].tolist() == [10, 200]


def test_an_image_is_cut_to_its_centre_square():
    image = Image.new("RGB", (30, 10), (0, 0, 0))
    image.paste((255, 255, 255), (10, 0, 20, 10))
    assert (loaders.centre_square(image, 10) == 255).all()


def test_an_npz_is_read_by_name_or_when_it_has_one_array(tmp_path):
    frames = np.zeros((3, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "x.npz", x=frames, y=np.zeros(3))
    np.savez(tmp_path / "one.npz", pictures=frames)
    assert len(loaders.images(tmp_path / "x.npz", 8)) == len(loaders.images(tmp_path / "one.npz", 8)) == 3


def test_an_npz_of_another_shape_is_refused_with_both_shapes(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 9, 8, 3), np.uint8))
    with pytest.raises(loaders.InvalidData, match=r"\[3, 9, 8, 3\], expected uint8 \[N, 8, 8, 3\]"):
        loaders.images(tmp_path / "x.npz", 8)


def test_frames_of_a_video_come_in_order(tmp_path):
    import av

    with av.open(str(tmp_path / "v.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width = stream.height = 64
        for value in (0, 80, 160, 240):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), value, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    means = loaders.images(tmp_path / "v.mp4", 16).mean(axis=(1, 2, 3))
    assert len(means) == 4 and (np.diff(means) > 50).all()


@pytest.mark.parametrize("name", ["none.mp4", "empty"])
def test_a_path_without_pictures_is_named(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(loaders.InvalidData, match=name):
        loaders.images(tmp_path / name, 8)


def test_a_file_that_is_no_video_is_named(tmp_path):
    (tmp_path / "v.mp4").write_text("not a video")
    with pytest.raises(loaders.InvalidData, match=r"v\.mp4 cannot be read as a video"):
        loaders.images(tmp_path / "v.mp4", 8)


def test_sentences_are_the_text_of_each_line(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"text": "good"}\n\n{"text": "bad", "label": 0}\n')
    assert loaders.sentences(tmp_path / "t.jsonl") == ["good", "bad"]


@pytest.mark.parametrize(("line", "told"), [("{", "not JSON"), ('{"label": 1}', "string"), ("[]", "object")])
def test_a_bad_line_is_named(tmp_path, line, told):
    (tmp_path / "t.jsonl").write_text('{"text": "good"}\n' + line + "\n")
    with pytest.raises(loaders.InvalidData, match=rf"t\.jsonl:2: .*{told}"):
        loaders.sentences(tmp_path / "t.jsonl")
