"""The images of `make images`: what is in them and what is not, how large they are, and that each starts."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from apparate_images import images, secrets
from support.images import Opened

pytestmark = pytest.mark.e2e
NAMES = [image.name for image in images.ALL]
SLIM = ("apparate-operator", "apparate-controller")
OURS_BYTES = 400_000_000  # layers of our own making are smaller; the worker's libraries are larger
OF_INSTALLERS = re.compile(r"(^|/)(pip\.conf|uv\.toml|\.netrc|sources\.list)$|^run/secrets/.|^var/lib/apt/lists/.*_")

opened = cache(Opened)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_this_machines_installers_is_left(name: str) -> None:
    image = opened(name)
    told = json.dumps(image.config)
    values = {value for value in secrets.settings().values() if "://" in value}
    assert not [value for value in values if value in told]
    assert not re.search(r"index.url|https?://(?!localhost)", told, re.IGNORECASE)
    assert not [one for one in image.names() if OF_INSTALLERS.search(one)]


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_as_a_number_and_says_what_it_is(name: str) -> None:
    settings = opened(name).config["config"]
    assert re.fullmatch(r"[1-9]\d+:0", settings["User"])
    assert settings["Labels"]["org.opencontainers.image.version"] == images.version()
    assert re.match(r"[0-9a-f]{40}|unknown", settings["Labels"]["org.opencontainers.image.revision"])


@pytest.mark.parametrize("name", SLIM)
def test_operator_and_controller_have_no_torch(name: str) -> None:
    heavy = re.compile(r"site-packages/(torch|nvidia|triton|transformers)/")
    assert not [one for one in opened(name).names() if heavy.search(one)][:5]


@pytest.mark.parametrize("name", SLIM)
def test_no_build_tool_is_left(name: str) -> None:
    tools = re.compile(r"/bin/(uv|uvx|pip3?|gcc|cc|make)$|site-packages/(pip|setuptools|uv)/")
    assert not [one for one in opened(name).names() if tools.search(one)][:5]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_as_large_as_it_may_be(name: str) -> None:
    limit = images.BY_NAME[name].limit_mb
    assert opened(name).made.own <= (limit * 1e6 if limit else 8e9)


@pytest.mark.parametrize("name", NAMES)
def test_bytecode_is_there_for_every_module_of_ours(name: str) -> None:
    found = set(opened(name).names())
    modules = [one for one in found if re.search(r"site-packages/apparate\w*/.*\.py$", one)]
    compiled = {re.sub(r"__pycache__/(.*)\.cpython-\d+\.pyc$", r"\1.py", one) for one in found if one.endswith(".pyc")}
    assert not [one for one in modules if one not in compiled]
    assert modules or name == "apparate-redis"


@pytest.mark.parametrize("name", NAMES)
def test_its_bill_of_materials_names_python_and_debian_packages(name: str) -> None:
    bill = json.loads(Path(opened(name).made.sbom).read_text())
    kinds = {one.get("purl", "").split("/")[0] for one in bill["components"]}
    assert bill["bomFormat"] == "CycloneDX"
    assert "pkg:deb" in kinds
    assert "pkg:pypi" in kinds or name == "apparate-redis"


@pytest.mark.parametrize(
    ("name", "command", "says"),
    [
        ("apparate-operator", ("python", "-m", "apparate_operator"), "EEM_OPERATOR_WORKER_IMAGE"),
        ("apparate-controller", ("python", "-m", "apparate_controller"), "EEM_CONTROLLER_"),
        ("apparate-worker", ("python", "-m", "apparate_worker"), "EEM_WORKER_"),
        ("apparate-worker", ("apparate", "prepare", "--help"), "--revision"),
        ("apparate-demo", ("python", "-m", "apparate_demo.traffic", "--help"), "materials"),
        ("apparate-redis", ("redis-server", "--version"), "Redis server"),
    ],
)
def test_it_starts_and_says_what_it_needs(name: str, command: tuple[str, ...], says: str) -> None:
    done = opened(name).run(*command)
    assert says in done.stdout + done.stderr, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
