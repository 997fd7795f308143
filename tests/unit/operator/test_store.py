"""What is remembered of the cluster, and when a model is looked at again."""

from __future__ import annotations

from typing import Any

import pytest

from apparate.contract.labels import UID_LABEL
from apparate_operator.kinds import DEPLOYMENT, JOB, MODEL, POD, Json
from apparate_operator.store import Store
from apparate_operator.trimming import bonds, trim

KEY = ("shop", "resnet")


def a_model(version: int, uid: str = "u1", **more: Any) -> Json:
    return {
        "metadata": {
            "namespace": "shop",
            "name": "resnet",
            "uid": uid,
            "resourceVersion": str(version),
            "generation": 1,
        },
        "spec": {},
        **more,
    }


def a_job(version: int, name: str = "job", uid: str = "u1", **more: Any) -> Json:
    meta = {"namespace": "shop", "name": name, "uid": name, "resourceVersion": str(version), "labels": {UID_LABEL: uid}}
    return {"metadata": meta, **more}


def test_news_of_what_belongs_to_a_model_lead_to_the_model():
    store = Store()
    assert store.put(MODEL, a_model(1)) == KEY
    assert store.put(JOB, a_job(2)) == KEY
    assert store.drop(JOB, a_job(3)) == KEY
    assert not store.of("u1")


def test_old_news_is_no_news():
    store = Store()
    store.put(MODEL, a_model(5))
    store.put(JOB, a_job(6, status={"startTime": "t"}))
    assert store.put(JOB, a_job(4)) is None
    assert store.of("u1")[JOB, "job"]["status"] == {"startTime": "t"}
    assert store.put(MODEL, a_model(3)) is None


def test_what_the_controller_writes_is_not_the_operators_business():
    store = Store()
    store.put(MODEL, a_model(1, status={"replicas": 1}))
    assert store.put(MODEL, a_model(2, status={"replicas": 1, "plan": {"revision": 7}})) is None
    assert store.models[KEY]["status"]["plan"] == {"revision": 7}
    assert store.put(MODEL, a_model(3, status={"replicas": 2})) == KEY


def test_a_late_word_of_a_deleted_model_does_not_take_its_successor_away():
    store = Store()
    store.put(MODEL, a_model(1, uid="old"))
    store.put(MODEL, a_model(9, uid="new"))
    store.drop(MODEL, a_model(8, uid="old"))
    assert store.models[KEY]["metadata"]["uid"] == "new"


def test_a_list_takes_away_what_is_gone_and_adds_what_was_missed():
    store = Store()
    store.put(MODEL, a_model(1))
    store.put(JOB, a_job(2, "gone"))
    store.begin_listing()
    assert store.behind(JOB, [a_job(3, "missed")]) == ["shop/missed"]
    assert store.replace(JOB, [a_job(3, "missed")], 5) == {KEY}
    store.end_listing()
    assert set(store.of("u1")) == {(JOB, "missed")}


def test_what_outlives_its_model_is_no_missed_change():
    store = Store()
    store.put(MODEL, a_model(1))
    store.put(JOB, a_job(2))
    store.drop(MODEL, a_model(3))
    assert store.behind(JOB, [a_job(2)]) == []
    store.drop(JOB, a_job(4))
    assert not store.children


def test_a_list_does_not_bring_back_what_was_deleted_while_it_was_taken():
    store = Store()
    store.put(MODEL, a_model(1))
    store.begin_listing()
    store.drop(JOB, a_job(7))
    store.replace(JOB, [a_job(3)], 5)
    assert not store.of("u1")


def test_a_list_keeps_what_is_newer_than_itself():
    store = Store()
    store.put(MODEL, a_model(1))
    store.put(JOB, a_job(9))
    store.replace(JOB, [], 5)
    assert (JOB, "job") in store.of("u1")


def test_of_an_object_only_what_decisions_read_is_kept():
    store = Store()
    store.put(MODEL, a_model(1))
    body = a_job(2) | {"spec": {"replicas": 2, "template": {"much": "more"}}, "status": {"readyReplicas": 1}}
    body["metadata"]["managedFields"] = [{"long": "list"}]
    store.put(DEPLOYMENT, body)
    kept = store.of("u1")[DEPLOYMENT, "job"]
    assert kept["spec"] == {"replicas": 2}
    assert "managedFields" not in kept["metadata"]


def test_what_was_trimmed_when_it_was_listed_stays_as_it_is():
    body = an_owned(2, {UID_LABEL: "u1", "app.kubernetes.io/component": "worker"}, ["u1"])
    body["status"] = {"containerStatuses": [{"name": "worker", "ready": True, "image": "w"}]}
    once = trim(POD, body)
    assert trim(POD, once) is once
    store = Store()
    store.put(MODEL, a_model(1))
    assert store.behind(POD, [once]) == ["shop/worker"]
    assert store.replace(POD, [once], 5) == {KEY}
    assert store.of("u1")[POD, "worker"] == once


def an_owned(version: int, labels: Json, owners: list[str]) -> Json:
    refs = [{"kind": "EarlyExitModel", "name": "resnet", "uid": uid, "controller": True} for uid in owners]
    meta = {"namespace": "shop", "name": "worker", "uid": "w", "resourceVersion": str(version)}
    return {"metadata": meta | {"labels": labels, "ownerReferences": refs}, "spec": {}}


def test_an_object_belongs_to_its_owner_whatever_its_label_says():
    store = Store()
    store.put(MODEL, a_model(1))
    assert store.put(DEPLOYMENT, an_owned(2, {UID_LABEL: "u1"}, ["u1"])) == KEY
    assert store.put(DEPLOYMENT, an_owned(3, {UID_LABEL: "other"}, ["u1"])) == KEY
    assert store.put(DEPLOYMENT, an_owned(4, {}, ["u1"])) == KEY
    assert store.put(DEPLOYMENT, an_owned(5, {UID_LABEL: "u1"}, [])) == KEY
    assert list(store.of("u1")) == [(DEPLOYMENT, "worker")]


@pytest.mark.parametrize("news", ["changed", "deleted"])
def test_an_object_that_lost_owner_and_label_is_not_the_models_any_more(news: str):
    store = Store()
    store.put(MODEL, a_model(1))
    store.put(DEPLOYMENT, an_owned(2, {UID_LABEL: "u1"}, ["u1"]))
    tell = store.put if news == "changed" else store.drop
    assert tell(DEPLOYMENT, an_owned(3, {}, [])) == KEY
    assert not store.of("u1")


def test_labels_and_owners_of_others_do_not_change_what_ties_an_object_to_its_model():
    theirs = bonds(an_owned(1, {UID_LABEL: "u1", "team": "shop"}, ["u1"])["metadata"])
    assert theirs == bonds(an_owned(1, {UID_LABEL: "u1"}, ["u1"])["metadata"])
    assert theirs != bonds(an_owned(1, {}, ["u1"])["metadata"])
    assert theirs != bonds(an_owned(1, {UID_LABEL: "u1"}, [])["metadata"])
