"""Traffic from files: frames of a video, images of a folder, sentences of a JSON-lines file, arrays of an .npz."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
Frames = npt.NDArray[np.uint8]


class InvalidData(ValueError):
    """Data that the demo cannot use as traffic; the message names the file and what is wrong with it."""


def centre_square(image: Any, size: int) -> Frames:
    """[size, size, 3] uint8: the largest centred square of a PIL image, scaled bilinearly."""
    from PIL import Image

    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = image.convert("RGB").crop((left, top, left + side, top + side))
    pixels: Frames = np.asarray(square.resize((size, size), Image.Resampling.BILINEAR), np.uint8)
    return pixels


def video_frames(path: Path, size: int) -> Frames:
    """[N, size, size, 3] every frame of a video in order. Raises InvalidData when it has none."""
    import av

    try:
        with av.open(str(path)) as container:
            decoded: Any = container.decode(video=0)
            frames = [centre_square(frame.to_image(), size) for frame in decoded]
    except (av.FFmpegError, IndexError) as error:
        raise InvalidData(f"{path} cannot be read as a video: {error}") from None
    if not frames:
        raise InvalidData(f"{path} has no frames")
    return np.stack(frames)


def folder_images(path: Path, size: int) -> Frames:
    """[N, size, size, 3] every image of a folder, sorted by name. Raises InvalidData when it has none."""
    from PIL import Image, UnidentifiedImageError

    files = sorted(p for p in path.iterdir() if p.suffix.lower() in IMAGES)
    if not files:
        raise InvalidData(f"{path} has no images ({', '.join(IMAGES)})")
    try:
        return np.stack([centre_square(Image.open(file), size) for file in files])
    except UnidentifiedImageError as error:
        raise InvalidData(str(error)) from None


def npz_array(path: Path, name: str, item: tuple[int, ...]) -> Frames:
    """[N, *item] uint8 array `name` of an .npz, or its only array. Raises InvalidData for another shape or type."""
    try:
        with np.load(path, allow_pickle=False) as file:
            key = name if name in file.files else (file.files[0] if len(file.files) == 1 else "")
            if not key:
                raise InvalidData(f"{path} has arrays {file.files}, expected one called {name}")
            found: Frames = file[key]
    except (OSError, ValueError) as error:
        raise error if isinstance(error, InvalidData) else InvalidData(f"{path} is no .npz: {error}") from None
    if found.dtype != np.uint8 or found.shape[1:] != item or not len(found):
        raise InvalidData(f"{path}: {key} is {found.dtype} {list(found.shape)}, expected uint8 [N, {str(item)[1:-1]}]")
    return found


def images(path: Path, size: int) -> Frames:
    """[N, size, size, 3] from whatever `path` is: a folder of images, an .npz with array `x`, or a video."""
    if path.is_dir():
        return folder_images(path, size)
    if not path.is_file():
        raise InvalidData(f"{path} does not exist")
    if path.suffix == ".npz":
        return npz_array(path, "x", (size, size, 3))
    return video_frames(path, size)


def sentences(path: Path) -> list[str]:
    """The `text` of every line of a JSON-lines file. Raises InvalidData that names the line."""
    if not path.is_file():
        raise InvalidData(f"{path} does not exist")
    found = list(_texts(path))
    if not found:
        raise InvalidData(f"{path} has no sentences")
    return found


def _texts(path: Path) -> Iterator[str]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InvalidData(f"{path}:{number}: not JSON: {error.msg}") from None
        if not isinstance(record, Mapping) or not isinstance(record.get("text"), str):
            raise InvalidData(f'{path}:{number}: expected an object with a string "text"')
        yield record["text"]
