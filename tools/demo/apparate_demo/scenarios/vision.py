"""Person / no person on the frames of two fixed cameras: real temporal order, and a real drift between them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from apparate_demo import loaders
from apparate_demo.assets import asset
from apparate_demo.scenarios.scenario import Materials, Scenario

SIZE = 96
BOOTSTRAP_EVERY = 8  # every eighth frame trains the ramps and is never served
VIDEOS = ("car-detection.mp4", "one-by-one-person-detection.mp4")
LEAST_FRAMES = 512  # 64 for the ramps at one in eight


def gather(data: Path | None) -> Materials:
    """Frames in order: the shipped videos one after the other, or those of `data`."""
    if data is None:
        frames = np.concatenate([loaders.video_frames(asset(name), SIZE) for name in VIDEOS])
        what = f"{len(frames):,} frames of two fixed cameras in order, cars first and then walkers, looped"
    else:
        frames = loaders.images(data, SIZE)
        what = f"{len(frames):,} frames of {data.name} in order, looped"
    if len(frames) < LEAST_FRAMES:
        raise loaders.InvalidData(f"{data} has {len(frames)} frames, at least {LEAST_FRAMES} are needed")
    bootstrap = np.arange(len(frames)) % BOOTSTRAP_EVERY == 0
    return Materials(
        weights=asset("vww_mobilenetv1_025_96.safetensors"),
        bootstrap={"image": frames[bootstrap]},
        traffic={"image": frames[~bootstrap]},
        note=f"{what}; every eighth frame ({bootstrap.sum()}) trained the ramps and is not served",
    )


SCENARIO = Scenario(
    name="vision",
    title="person / no person on video, MobileNetV1 0.25",
    model={
        "entrypoint": "apparate_demo.models.mobilenet:load",
        "inputs": [{"name": "image", "datatype": "UINT8", "shape": [SIZE, SIZE, 3]}],
        "classes": ["no person", "person"],
    },
    gather=gather,
    spec={"budget": {"rampOverhead": 0.08}},
)
