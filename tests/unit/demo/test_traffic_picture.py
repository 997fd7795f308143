"""The picture of a run in a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from apparate_demo.traffic.picture import Story, draw


def a_story(folder: Path) -> Path:
    second = {"kind": "second", "answered": 50, "failed": 0, "early": 20, "revision": 1}
    window = {"kind": "window", "answers": 1000, "agreement": 0.996, "early": 0.6, "revision": 1, "p50_ms": 2.0}
    lines = [second | {"at": 100 + s, "protocol": p, "p50_ms": 2.0} for s in range(60) for p in ("http", "grpc")]
    lines += [window | {"begin": 100.0 + 10 * i, "end": 110.0 + 10 * i} for i in range(5)]
    lines += [
        {"kind": "plan", "at": 100 + 20 * r, "model": "person", "revision": r, "ramps": {"layers.3": 0.1 * r}}
        for r in range(3)
    ]
    lines += [{"kind": "failure", "sent": 130.0, "done": 130.1, "protocol": "http", "error": "gone"}]
    lines += [{"kind": "mark", "what": "worker killed", "begin": 129.0, "end": 140.0, "recovered": {}}]
    path = folder / "story.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def test_a_story_becomes_a_picture(tmp_path: Path):
    draw(Story.load(a_story(tmp_path)), tmp_path / "made" / "story.png", title="a run", model="person")
    assert (tmp_path / "made" / "story.png").read_bytes().startswith(b"\x89PNG")


def test_a_story_begins_and_ends_with_its_traffic(tmp_path: Path):
    story = Story.load(a_story(tmp_path))
    assert (story.begin, story.end, len(story.of("second", protocol="grpc"))) == (100, 159, 60)


def test_a_file_without_traffic_is_refused_by_name(tmp_path: Path):
    (tmp_path / "none.jsonl").write_text('{"kind": "plan"}\n')
    with pytest.raises(ValueError, match=r"none\.jsonl has no line of the load generator"):
        Story.load(tmp_path / "none.jsonl")
