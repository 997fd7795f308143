"""Every error a client can get has a status in both protocols."""

import grpc
import pytest

from apparate_worker import errors


def tree(base):
    return [base, *(one for child in base.__subclasses__() for one in tree(child))]


@pytest.mark.parametrize("kind", tree(errors.WorkerError), ids=lambda kind: kind.__name__)
def test_every_error_has_an_http_status_and_a_grpc_code_that_say_failure(kind):
    assert 400 <= kind.status < 600
    assert isinstance(kind.code, grpc.StatusCode)
    assert kind.code is not grpc.StatusCode.OK


@pytest.mark.parametrize("kind", tree(errors.WorkerError), ids=lambda kind: kind.__name__)
def test_every_error_stands_in_the_tree_that_opens_the_file(kind):
    line = next(line for line in errors.__doc__.splitlines() if kind.__name__ in line)
    assert kind is errors.WorkerError or (str(kind.status) in line and kind.code.name in line)


@pytest.mark.parametrize("error", [errors.QueueFull("full"), errors.WouldBeLate("late", 0.2), errors.NotReady("no")])
def test_what_passes_by_itself_says_when_to_try_again(error):
    assert error.retry_after_s == 1


def test_an_error_out_of_torchscript_is_told_without_the_code_around_it():
    text = (
        "The following operation failed in the TorchScript interpreter.\n"
        "Traceback of TorchScript (most recent call last):\n"
        '  File "<string>", line 2, in forward\n'
        "    v_embedding = torch.ops.aten.embedding(self.p_model_e_weight, v_inputs_0)\n"
        "RuntimeError: index out of range in self\n"
    )
    assert errors.words_of(RuntimeError(text)) == "RuntimeError: index out of range in self"


def test_any_other_error_is_told_as_it_is():
    assert errors.words_of(RuntimeError("one\ntwo")) == "one\ntwo"
