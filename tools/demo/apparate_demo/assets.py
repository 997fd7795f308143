"""The files that ship with the demo, by name, with their sums; sources and licences are in assets/SOURCES.md."""

from __future__ import annotations

import hashlib
from pathlib import Path

ASSETS = Path(__file__).parent / "assets"
MAX_BYTES = 40 * 10**6  # what a clone may be asked to carry for a demo

SHA256 = {
    "vww_mobilenetv1_025_96.safetensors": "e171723a5bf3459f37e560faaf7e4c72d2125fdf192777f31cf846b1284d3ce6",
    "car-detection.mp4": "d31e0ebf194cc16e50eea784e7c3b0b1bb7976a4fb9b3fec26cb92a6704cca34",
    "one-by-one-person-detection.mp4": "a5964aa259099a482a8b360ffc2c57b5a30f84d5919236a4dad01f8e929ac07c",
    "minilm_sentence_polarity.safetensors": "a41daa0316347a68712ce2d65173c3b06643bec838b1a8ec7c77866d2c442704",
    "sentence_polarity_train.jsonl": "20929c819fc77aff4c5987d2df38476a1201663cccf39ee2fe193e60d3dbb260",
    "sentence_polarity_serving.jsonl": "8e8ea23612b38f0c3193b796316f98234e7cc6654ff4e3d467a29686e5eaa86e",
    "products5_drift.jsonl": "aafded71fef77d3d6ed8e3c681568381750f254d92a82ded9000f936320ddd57",
    "azure_llm_conv_2023_arrivals.csv": "b152abe77c7b4203829d81350e304a00e66f6365e2f42d29c0f47017be3b47ff",
}


def asset(name: str) -> Path:
    """Path of a shipped file. Raises KeyError for a name that is not shipped, FileNotFoundError when it is missing."""
    SHA256[name]
    path = ASSETS / name
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: the demo's assets were not installed with it")
    return path


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
