"""The registry of models: which version answers, what the index says, when the server is ready."""

from __future__ import annotations

import re
from typing import Any

import pytest

from apparate_worker.batching import Batcher
from apparate_worker.errors import NotReady, UnknownModel
from apparate_worker.protocol.dataplane import Dataplane
from apparate_worker.protocol.models import Models, State
from support.models import X


def a_plane(name: str = "a", version: str = "1", **other: Any) -> Dataplane:
    plane = Dataplane(
        name=name,
        version=version,
        inputs=(X,),
        output="logits",
        classes=("x", "y"),
        layers=("one",),
        batcher=Batcher(max_batch=1, max_delay_s=0, max_queue=1),
        queue_timeout_s=1,
        alive=lambda: True,
        **other,
    )
    plane.accepting = True
    return plane


def models_with(*planes: Dataplane) -> Models:
    models = Models(lambda: True)
    for plane in planes:
        models.declare(plane.name)
        models.serve(plane)
    models.announced = True
    return models


def states(models: Models) -> dict[tuple[str, str], str]:
    return {(one.name, one.version): str(one.state) for one in models.index()}


def test_a_request_without_a_version_gets_the_one_that_answers_now():
    a, b = a_plane("a"), a_plane("b")
    models = models_with(a, b)
    assert (models.find("a"), models.find("b", "1")) == (a, b)


@pytest.mark.parametrize(
    ("name", "version", "error", "words"),
    [
        ("c", "", UnknownModel, "model 'c' is not served here; there are: 'a', 'coming', 'failed'"),
        ("a", "2", UnknownModel, "model 'a' has no version '2'; there is '1'"),
        ("coming", "", NotReady, "model 'coming' is being loaded"),
        ("failed", "", UnknownModel, "model 'failed' is not loaded: no such folder"),
    ],
)
def test_what_cannot_answer_is_refused_with_its_reason(name, version, error, words):
    models = models_with(a_plane("a"))
    models.note("coming", "1", State.LOADING)
    models.note("failed", "1", State.UNAVAILABLE, "no such folder")
    with pytest.raises(error, match=f"^{re.escape(words)}$"):
        models.find(name, version)


def test_the_server_is_ready_when_every_declared_model_is():
    models = models_with(a_plane("a"))
    models.declare("b")
    assert not models.ready()
    assert models.model_ready("a")
    b = a_plane("b")
    b.accepting = False
    models.serve(b)
    assert not models.ready()
    b.accepting = True
    assert models.ready()


def test_a_model_that_is_being_loaded_is_known_and_not_ready():
    models = models_with()
    models.note("a", "1", State.LOADING)
    assert not models.model_ready("a")


def test_a_newer_version_takes_over_and_the_older_one_leaves_the_index_when_it_has_ended():
    old, new = a_plane("a", "1"), a_plane("a", "2")
    models = models_with(old)
    models.note("a", "2", State.LOADING)
    assert models.find("a") is old
    assert models.serve(new) is old
    assert models.find("a") is new
    assert states(models) == {("a", "1"): "UNLOADING", ("a", "2"): "READY"}
    models.gone(old, "replaced")
    assert states(models) == {("a", "2"): "READY"}


def test_an_unloaded_model_stays_in_the_index_and_the_server_is_ready_without_it():
    models = models_with(a_plane("a"), a_plane("b"))
    plane = models.withdraw("a")
    assert plane is not None
    models.gone(plane, "unloaded")
    assert states(models) == {("a", "1"): "UNAVAILABLE", ("b", "1"): "READY"}
    assert [one.name for one in models.index(ready=True)] == ["b"]
    assert models.ready()


def test_a_failed_load_leaves_the_version_that_answers():
    old = a_plane("a")
    models = models_with(old)
    models.note("a", "2", State.UNAVAILABLE, "catalog.json is missing")
    assert models.find("a") is old
    assert models.ready()


def test_answers_are_counted_at_their_model_and_others_apart():
    counted: list[tuple[str, str, int]] = []
    a = a_plane("a", count=lambda protocol, code: counted.append(("a", protocol, code)))
    models = Models(lambda: True, lambda protocol, code: counted.append(("", protocol, code)))
    models.serve(a)
    models.count("http", "a", 200)
    models.count("grpc", "b", 404)
    assert counted == [("a", "http", 200), ("", "grpc", 404)]
