"""`make images`: bring the product's images up to date, and say how large they are and where they lie."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from apparate_cluster import debian

from . import build, buildah, engines, images, needs, place
from .build import Made
from .place import ImageFailed, say


def main(arguments: Sequence[str]) -> int:
    """Command line; the exit status."""
    parser = argparse.ArgumentParser(prog="apparate_images", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; without: all")
    parser.add_argument("--links", type=Path, help="folder to fill with links to archives and bills of materials")
    parser.add_argument("--archives", action="store_true", help="print the archives in the order to load them in")
    parser.add_argument("--engine", choices=("auto", "docker", "podman", "buildah"), default="auto")
    asked = parser.parse_args(arguments)
    names = asked.names or list(images.BY_NAME)
    if unknown := sorted(set(names) - set(images.BY_NAME)):
        parser.error(f"unknown: {', '.join(unknown)}; there are: {', '.join(images.BY_NAME)}")
    signal.signal(signal.SIGTERM, _stop)
    os.environ["PATH"] = debian.search_path()  # debootstrap lies in /usr/sbin
    try:
        engine = engines.choose(asked.engine)
        if engine != "buildah":
            engines.build_all(engine, names)
            return 0
        done = _by_buildah(names, arguments)
    except ImageFailed as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    if asked.archives:
        print(*build.in_order(done), sep="\n")
    if asked.links:
        _link(done, asked.links)
    return 0


def _stop(number: int, _: object) -> NoReturn:
    """End and tidy up: without a handler the first process of a namespace ignores SIGTERM."""
    sys.exit(128 + number)


def _by_buildah(names: Sequence[str], arguments: Sequence[str]) -> list[Made]:
    found = [build.made(images.BY_NAME[name]) for name in names]
    if all(found):
        say("nothing has changed")
        done = [one for one in found if one is not None]
    else:
        needs.install()
        place.check_room()
        buildah.enter_own_mounts(arguments)
        started = time.monotonic()
        with place.one_at_a_time():
            done = build.build(names)
        say(f"all made in {time.monotonic() - started:.0f} s; they lie in {place.root()}")
    for made in done:
        say(f"{images.reference(made.name):34} {made.size / 1e6:6.0f} MB, {made.own / 1e6:6.0f} MB without the base")
    return done


def _link(fresh: Sequence[Made], folder: Path) -> None:
    """Links to what was made now, and to others that are up to date; archives are numbered in the order to load."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.is_symlink():
            old.unlink()
    known = {made.name: made for made in fresh}
    done = [one for one in (known.get(image.name) or build.made(image) for image in images.ALL) if one is not None]
    targets = {f"{number}-{one.name.rsplit('-', 1)[0]}.tar": one for number, one in enumerate(build.in_order(done), 1)}
    targets |= {f"{made.name}.cdx.json": made.sbom for made in done}
    for name, target in targets.items():
        (folder / name).symlink_to(target)
    say(f"archives and bills of materials: {folder}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
