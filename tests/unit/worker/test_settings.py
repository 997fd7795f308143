"""What the process is told, and which document it then serves."""

from pathlib import Path

import pytest
import torch

from apparate.service.settings import InvalidSettings
from apparate_worker.documents import choose
from apparate_worker.errors import InvalidSetup
from apparate_worker.settings import WorkerSettings
from apparate_worker.worker import device_of
from support.models import a_document


def settings(**values):
    return WorkerSettings.load(
        {f"EEM_WORKER_{name}": value for name, value in {"DOCUMENT": "m.yaml", **values}.items()}
    )


def test_a_document_is_enough():
    found = settings()
    assert (found.document, found.redis_url, found.http_port) == (Path("m.yaml"), "", None)


def test_so_is_an_object():
    assert WorkerSettings.load({"EEM_WORKER_OBJECT": "shop/person"}).object == "shop/person"


def test_one_of_both_must_say_what_to_serve():
    with pytest.raises(InvalidSettings, match=r"^EEM_WORKER_DOCUMENT or EEM_WORKER_OBJECT must say what to serve"):
        WorkerSettings.load({})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("OBJECT", "person", "EEM_WORKER_OBJECT is 'person'"),
        ("DOCUMNET", "x", "EEM_WORKER_DOCUMNET is not a setting"),
        ("HTTP_PORT", "99999", "EEM_WORKER_HTTP_PORT is '99999'"),
        ("LOG_LEVEL", "LOUD", "EEM_WORKER_LOG_LEVEL is 'LOUD'"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(name, value, words):
    with pytest.raises(InvalidSettings, match=words):
        settings(**{name: value})


def test_workers_of_one_machine_have_different_names_unless_told():
    assert settings().name.rpartition("-")[2].isdigit()
    assert settings(NAME="w1").name == "w1"


def test_the_only_document_is_served_without_naming_it():
    document = a_document()
    assert choose([document], settings()) == [document]


def test_all_of_several_documents_are_served_unless_one_is_named():
    one, two = a_document(name="one"), a_document(name="two")
    assert choose([one, two], settings()) == [one, two]
    assert choose([one, two], settings(MODEL="two")) == [two]


@pytest.mark.parametrize("name", ["PREPARED", "OBJECT"])
def test_what_is_said_of_one_model_does_not_go_with_several(name):
    with pytest.raises(InvalidSetup, match=f"EEM_WORKER_{name} is of one model, .* has one, two: name one by"):
        choose([a_document(name="one"), a_document(name="two")], settings(**{name: "a/b"}))


def test_a_name_that_no_document_has_is_refused_with_those_there_are():
    with pytest.raises(InvalidSetup, match="no model 'other'; there are: tiny"):
        choose([a_document()], settings(MODEL="other"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(InvalidSetup, match="cuda:1, this machine has no usable GPU"):
        device_of("cuda:1")
    assert device_of("auto").type == "cpu"
