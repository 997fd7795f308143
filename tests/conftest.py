"""What all tests share: the tiers and the real servers.

A tier whose tool is missing is skipped, unless EEM_TEST_REQUIRE (comma-separated marker names) asks for it: then its
tests fail and say what is missing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: tests share few cores

from apparate.service.redis_server import NoRedisServer, find
from apparate_cluster import prometheus
from support import kube, node, programs, second_try
from support.redis import RedisServer, a_redis_server

hypothesis.settings.register_profile("untimed", deadline=None)  # a busy machine is no reason to fail
hypothesis.settings.load_profile("untimed")
TIERS = ("redis", "prometheus", "browser", "compiler", "cluster", "e2e", "gpu", "conformance", "fuzz")
CLIENTS = ("schemathesis", "tritonclient")
REQUIRED = frozenset(filter(None, os.environ.get("EEM_TEST_REQUIRE", "").split(",")))


def missing(tier: str) -> str:
    """What a tier lacks on this machine; empty when it can run."""
    if tier == "redis":
        try:
            find()
        except NoRedisServer as error:
            return str(error)
    if tier == "prometheus":
        return prometheus.missing()
    if tier == "browser":
        return programs.missing(programs.BROWSERS, programs.BROWSER_PACKAGES)
    if tier == "compiler":
        return programs.missing(programs.COMPILERS, programs.COMPILER_PACKAGES)
    if tier == "gpu":
        import torch

        return "" if torch.cuda.is_available() else "no CUDA device"
    if tier == "conformance":
        lacks = [one for one in CLIENTS if importlib.util.find_spec(one) is None]
        lacks += [] if shutil.which("curl") else ["curl"]
        return f"no {', '.join(lacks)}" if lacks else ""
    if tier == "fuzz":
        return "" if importlib.util.find_spec("atheris") else "no atheris"
    if tier == "cluster":
        return kube.missing()
    if tier == "e2e":
        return node.missing()
    return ""


def need(tier: str) -> None:
    """Skip the running test when the tier cannot run here, or fail it when the tier was asked for."""
    lack = missing(tier)
    if lack and tier in REQUIRED:
        pytest.fail(f"EEM_TEST_REQUIRE asks for {tier}: {lack}", pytrace=False)
    if lack:
        pytest.skip(f"{tier}: {lack}")


def pytest_configure(config: pytest.Config) -> None:
    unknown = REQUIRED - set(TIERS)
    if unknown:
        raise pytest.UsageError(f"EEM_TEST_REQUIRE names {sorted(unknown)}, there are: {', '.join(TIERS)}")
    config.pluginmanager.register(second_try)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for tier in TIERS:
        if item.get_closest_marker(tier) is not None:
            need(tier)


@pytest.fixture(scope="session")
def _session_redis() -> Iterator[RedisServer]:
    need("redis")
    with a_redis_server() as server:
        yield server


@pytest.fixture
def redis_server(_session_redis: RedisServer) -> str:
    """URL of a real, empty redis-server that all tests of the session share: do not kill it."""
    _session_redis.start()
    _session_redis.flush()
    return _session_redis.url


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A real redis-server of this test's own, which it may kill9, freeze and restart."""
    need("redis")
    with a_redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def control_plane() -> Iterator[kube.Cluster]:
    """A real Kubernetes API that the session shares: do not stop it, and leave nothing cluster-wide behind."""
    need("cluster")
    with kube.a_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def bare_control_plane() -> Iterator[kube.Cluster]:
    """A second one that the session shares, without our CRD: who installs a chart there takes it all away again."""
    need("cluster")
    with kube.a_control_plane() as plane:
        yield plane


@pytest.fixture
def own_control_plane() -> Iterator[kube.ControlPlane]:
    """A real Kubernetes API of this test's own, whose processes (`pids`) it may kill, freeze and thaw."""
    need("cluster")
    with kube.a_control_plane() as plane:
        yield plane


@pytest.fixture
def namespace(control_plane: kube.Cluster) -> Iterator[str]:
    """Name of a fresh namespace, deleted afterwards."""
    with control_plane.namespace() as name:
        yield name


@pytest.fixture
def crd(control_plane: kube.Cluster) -> dict[str, Any]:
    """The EarlyExitModel resource, installed and served."""
    from apparate.contract.schema import crd

    made = crd()
    control_plane.install_crd(made)
    return made
