"""Dockerfiles, the requirements of images, and the values for images made here, against what they come from."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from apparate_images import images
from apparate_operator.manifests.pods import GROUP_ID

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = {image.name: image.text for image in images.ALL}
SERVICES = ("operator", "controller", "worker")
VALUES = yaml.safe_load((ROOT / "charts/apparate/values.yaml").read_text())
HERE = yaml.safe_load((ROOT / "tools/images/values.yaml").read_text())


def pins(path: str) -> dict[str, str]:
    """Name to the whole entry: version, marker and hashes."""
    entries = re.split(r"\n(?=\S)", (ROOT / path).read_text())
    return {one.split("==")[0]: one.strip() for one in entries if "==" in one}


def needed(extra: str) -> set[str]:
    """Names of what an extra takes in this interpreter, by the metadata of what is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    todo = [(text, "") for text in [*project["dependencies"], *project["optional-dependencies"][extra]]]
    seen: set[tuple[str, str]] = set()
    while todo:
        one, of = Requirement(todo[-1][0]), todo.pop()[1]
        if one.marker is not None and not one.marker.evaluate({"extra": of}):
            continue
        for more in {"", *one.extras} - {more for name, more in seen if name == one.name}:
            seen.add((one.name, more))
            todo += [(text, more) for text in metadata.requires(one.name) or ()]
    return {canonicalize_name(name) for name, _ in seen}


@pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT / "requirements").glob("*.txt"))])
def test_an_image_has_the_pins_of_the_lock_file(name: str) -> None:
    lock, own = pins("requirements.lock"), pins(f"requirements/{name}.txt")
    unlike = [one for one, entry in own.items() if hashes(entry) != hashes(lock.get(one, ""))]
    assert own, name
    assert not unlike, "run `make lock` and commit"


def hashes(entry: str) -> tuple[str, set[str]]:
    """Pin and hashes. The marker may differ: what all of a part needs is conditional in the whole."""
    return re.split(r"[ ;\\]", entry)[0], set(re.findall(r"sha256:\w+", entry))


@pytest.mark.parametrize("extra", SERVICES)
def test_an_image_has_all_that_its_extra_needs(extra: str) -> None:
    lacking = needed(extra) - set(pins(f"requirements/{extra}.txt"))
    assert not lacking, "run `make lock` and commit"


@pytest.mark.parametrize("service", ["operator", "controller"])
def test_operator_and_controller_are_not_given_torch(service: str) -> None:
    heavy = [one for one in pins(f"requirements/{service}.txt") if re.match(r"torch|nvidia|triton|transformers", one)]
    assert not heavy


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_last_user_of_an_image_is_a_number_other_than_root(name: str) -> None:
    users = re.findall(r"^USER (\d+):0$", DOCKERFILES[name], re.MULTILINE)
    assert int(users[-1]) >= 999  # runAsNonRoot can be checked by a number only, and OpenShift's users are in group 0


@pytest.mark.parametrize("name", DOCKERFILES)
def test_a_command_is_not_wrapped_in_a_shell_that_would_keep_signals(name: str) -> None:
    assert re.search(r'^CMD \["', DOCKERFILES[name], re.MULTILINE)
    assert not re.search(r"^(CMD|ENTRYPOINT) [^\[]", DOCKERFILES[name], re.MULTILINE)


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_base_can_be_chosen_and_pinned(name: str) -> None:
    stages = re.findall(r"^FROM (\S+)", DOCKERFILES[name], re.MULTILINE)
    known = set(re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILES[name], re.MULTILINE))
    assert all(one in known or one in ("${BASE}", "${BUILD_BASE}", "${PARENT}") for one in stages), stages


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_says_what_it_is_and_where_it_comes_from(name: str) -> None:
    for label in ("title", "version", "revision", "source", "licenses"):
        assert f"org.opencontainers.image.{label}=" in DOCKERFILES[name]


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_has_its_own_packages_and_no_other_services(service: str) -> None:
    text = DOCKERFILES[f"apparate-{service}"]
    for other in SERVICES:
        assert (f"apparate_{other} /src" in text) == (other == service)


def test_the_worker_of_the_image_is_in_the_group_of_its_volumes_number() -> None:
    assert f"USER {GROUP_ID}:0" in DOCKERFILES["apparate-worker"]


def test_the_chart_asks_for_the_images_that_are_made_here() -> None:
    for service in SERVICES:
        assert VALUES[service]["image"]["repository"] in images.BY_NAME
    assert HERE["image"]["registry"] == images.REGISTRY
    redis = HERE["redis"]["image"]
    assert f"{redis['repository']}:{redis['tag']}" == images.reference("apparate-redis")
