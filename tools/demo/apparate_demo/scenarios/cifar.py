"""Vehicle or not on CIFAR-10 with a ResNet-56, from a folder of the user's: the images may not be shipped."""

from __future__ import annotations

from pathlib import Path

from apparate_demo import loaders
from apparate_demo.scenarios.scenario import Materials, Scenario

SIZE = 32
WEIGHTS, BOOTSTRAP, SERVING = "resnet56_cifar10.safetensors", "cifar10_bootstrap.npz", "cifar10_serving.npz"


def gather(data: Path | None) -> Materials:
    """Weights, bootstrap images and serving images (array `x` [N, 32, 32, 3] uint8) from the folder `data`."""
    if data is None:
        raise loaders.InvalidData(f"the cifar scenario needs --data FOLDER with {WEIGHTS}, {BOOTSTRAP} and {SERVING}")
    missing = [name for name in (WEIGHTS, BOOTSTRAP, SERVING) if not (data / name).is_file()]
    if missing:
        raise loaders.InvalidData(f"{data} has no {', '.join(missing)}")
    bootstrap = loaders.npz_array(data / BOOTSTRAP, "x", (SIZE, SIZE, 3))
    traffic = loaders.npz_array(data / SERVING, "x", (SIZE, SIZE, 3))
    return Materials(
        weights=data / WEIGHTS,
        bootstrap={"image": bootstrap},
        traffic={"image": traffic},
        note=f"{len(traffic):,} test images in order, looped; {len(bootstrap):,} other images trained the ramps",
    )


SCENARIO = Scenario(
    name="cifar",
    title="vehicle or not on CIFAR-10, ResNet-56",
    model={
        "entrypoint": "apparate_demo.models.resnet_cifar:load_two_class",
        "inputs": [{"name": "image", "datatype": "UINT8", "shape": [SIZE, SIZE, 3]}],
        "classes": ["other", "vehicle"],
    },
    gather=gather,
    spec={"budget": {"rampOverhead": 0.08}},
    seconds=240.0,
)
