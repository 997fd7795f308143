from __future__ import annotations

import pytest

from apparate.contract.pause import Pause, said_by


def entry(manager: str, time: str, *path: str) -> dict:
    found: dict = {}
    for name in reversed(path):
        found = {f"f:{name}": found}
    return {"manager": manager, "time": time, "fieldsV1": found}


def an_object(*managed: dict, paused: bool = True) -> dict:
    return {"metadata": {"managedFields": list(managed)}, "spec": {"adaptation": {"paused": paused}}}


def test_who_last_set_it_and_when_is_read_off_the_object():
    paused = ("spec", "adaptation", "paused")
    thing = an_object(
        entry("kubectl-edit", "2026-01-01T00:00:00Z", *paused),
        entry("apparate-cli", "2026-01-02T00:00:00Z", *paused),
        entry("argocd", "2026-01-03T00:00:00Z", "spec", "adaptation", "window"),
        entry("apparate-operator", "2026-01-04T00:00:00Z", "status", "conditions"),
    )
    assert said_by(thing) == Pause(True, "2026-01-02T00:00:00Z", "apparate-cli", document=True)


@pytest.mark.parametrize(
    "thing",
    [{}, {"spec": None}, {"spec": {}, "metadata": {}}, an_object({"manager": "x", "fieldsV1": None}, paused=False)],
)
def test_an_object_that_says_nothing_of_it_adapts(thing):
    assert said_by(thing) == Pause()


def test_a_document_without_managers_is_who_says_so():
    assert said_by({"spec": {"adaptation": {"paused": True}}}) == Pause(True, by="its document", document=True)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"paused": true}'])
def test_text_that_is_no_pause_is_none(text):
    assert Pause.load(text) is None


def test_it_reads_back_what_it_wrote():
    one = Pause(True, "t", "alice", document=True)
    assert Pause.load(one.dump()) == one
