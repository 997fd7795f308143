"""Which tests run a second time, in a pytest of their own, alone and with two processes that share the tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CONFTEST = """
import pytest

from support import second_try

def pytest_configure(config):
    config.pluginmanager.register(second_try)

def once_more(path):
    path.write_text(path.read_text() + "x" if path.exists() else "x")

@pytest.fixture(scope="session")
def made(request):
    made = [request.config.rootpath / "session"]
    once_more(made[0])
    yield made
    assert made.pop()

@pytest.fixture(scope="module")
def part(made, request):
    once_more(request.config.rootpath / request.path.stem)
    yield made
    assert made
"""
FAILS_ONCE = """
def test_{name}(part, request):
    with request.config.rootpath.joinpath("tries_{name}").open("a+") as file:
        file.write("x")
        assert file.tell() > 1, "the machine was busy"
"""
FAILS = """
def test_{name}(part):
    raise ValueError("always")
"""
HANGS_ONCE = """
import time

def test_hangs(request):
    with request.config.rootpath.joinpath("tries_hangs").open("a+") as file:
        file.write("x")
        tries = file.tell()
    time.sleep(60 if tries == 1 else 0)

def test_hangs_for_ever():
    time.sleep(60)
"""
LOOPS = "asyncio_default_fixture_loop_scope = function"  # or pytest-asyncio warns
HOW = [pytest.param([], id="alone"), pytest.param(["-n", "2", "--dist", "loadfile"], id="with others")]


def outcome(folder: Path, options: list[str], **modules: str) -> tuple[int, str]:
    """Exit status and output of pytest over modules, each named by its tier."""
    for tier, code in modules.items():
        (folder / "tests" / tier).mkdir(parents=True)
        (folder / "tests" / tier / f"test_{tier}.py").write_text(code)
    (folder / "tests" / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text(f"[pytest]\nfilterwarnings = error\ntimeout = 30\n{LOOPS}\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ["PYTHONPATH"] = str(TESTS)
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("options", HOW)
def test_what_fails_once_passes_and_is_told_with_its_failure_while_fixtures_live_on(tmp_path, options):
    code = FAILS_ONCE.format(name="one") + FAILS_ONCE.format(name="last")
    status, said = outcome(tmp_path, options, integration=code)
    assert status == 0, said
    assert "2 passed, 2 rerun" in said
    assert said.count("AssertionError: the machine was busy") == 2
    told = re.findall(r"passed at the second try: (\S+)", said)
    assert sorted(told) == [f"tests/integration/test_integration.py::test_{name}" for name in ("last", "one")]
    assert [(tmp_path / name).read_text() for name in ("session", "test_integration")] == ["x", "x"]


@pytest.mark.parametrize("options", HOW)
def test_what_fails_twice_fails_and_so_does_one_test_more_than_three_that_fail_once(tmp_path, options):
    many = "".join(FAILS_ONCE.format(name=f"n{i}") for i in range(4))
    status, said = outcome(tmp_path / "many", options, cluster=many)
    assert (status, "1 failed, 3 passed, 3 rerun" in said) == (1, True), said
    status, said = outcome(tmp_path / "twice", options, e2e=FAILS.format(name="bad"))
    assert (status, "failed at both tries: tests/e2e/test_e2e.py::test_bad" in said) == (1, True), said


def test_tests_that_need_nothing_but_themselves_have_no_second_try(tmp_path):
    tiers = ("unit", "drift", "golden")
    status, said = outcome(tmp_path, [], **{tier: FAILS_ONCE.format(name=tier) for tier in tiers})
    assert (status, "3 failed in" in said) == (1, True), said


def test_the_second_try_of_what_hung_has_the_whole_time_again_and_no_more(tmp_path):
    status, said = outcome(tmp_path, ["-o", "timeout=2"], conformance=HANGS_ONCE)
    assert (status, "1 failed, 1 passed, 2 rerun" in said) == (1, True), said
