"""What Kubernetes refuses the controller is known, named and told once."""

import pytest
from structlog.testing import capture_logs

from apparate.service.kube import KubeError, Right
from apparate_controller.access import FORGOTTEN_S, PASSING_S, Access

WRITE = Right("patch", "earlyexitmodels/status", "shop")
FORBIDDEN = KubeError(403, 'PATCH /x: 403 User "c" cannot patch resource "earlyexitmodels/status"', "Forbidden")


def an_access():
    now, counted = [0.0], []
    return Access(lambda verb, status: counted.append((verb, status)), clock=lambda: now[0]), now, counted


@pytest.mark.parametrize(
    ("method", "path", "watching", "right"),
    [
        ("GET", "/apis/apparate.dev/v1alpha1/earlyexitmodels", False, "list earlyexitmodels"),
        ("GET", "/apis/apparate.dev/v1alpha1/earlyexitmodels", True, "watch earlyexitmodels"),
        ("GET", "/apis/a/v1/namespaces/shop/earlyexitmodels/m", False, "get earlyexitmodels in namespace shop"),
        ("PATCH", "/apis/a/v1/namespaces/shop/eems/m/status", False, "patch eems/status in namespace shop"),
        ("GET", "/api/v1/namespaces/shop/configmaps/c", False, "get configmaps in namespace shop"),
        ("POST", "/apis/c/v1/namespaces/shop/leases", False, "create leases in namespace shop"),
        ("PUT", "/apis/c/v1/namespaces/shop/leases/l", False, "update leases in namespace shop"),
        ("GET", "/api/v1/namespaces/shop", False, "get namespaces"),
        ("GET", "/version", False, "get /version"),
    ],
)
def test_a_call_needs_a_right_that_is_named_as_in_a_role(method, path, watching, right):
    assert str(Right.of(method, path, watching=watching)) == right


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FORBIDDEN, "a right is missing in the controller's Role or ClusterRole"),
        (KubeError(401, "PATCH /x: 401 Unauthorized"), "does not accept this process's token"),
    ],
)
def test_what_is_refused_is_a_problem_until_it_is_allowed(error, words):
    access, _, counted = an_access()
    access(WRITE, error)
    problems = access.problems()
    assert list(problems) == ["patch earlyexitmodels/status in namespace shop"] and words in problems[str(WRITE)]
    access(WRITE, None)
    assert (access.problems(), counted) == ({}, [("patch", error.status)])


def test_a_refusal_is_logged_once_and_its_end_once_however_often_it_is_tried():
    access, _, _ = an_access()
    with capture_logs() as lines:
        for _ in range(50):
            access(WRITE, FORBIDDEN)
        for _ in range(50):
            access(WRITE, None)
    assert [(line["log_level"], line["right"]) for line in lines] == [("error", str(WRITE)), ("info", str(WRITE))]


def test_no_answer_is_a_problem_only_when_it_lasts():
    access, now, _ = an_access()
    access(WRITE, KubeError(0, "refused"))
    assert access.problems() == {}
    now[0] = PASSING_S
    access(WRITE, KubeError(503, "unavailable"))
    assert str(WRITE) in access.problems()


def test_what_nobody_tries_any_more_is_forgotten():
    access, now, _ = an_access()
    access(WRITE, FORBIDDEN)
    now[0] = FORGOTTEN_S + 1
    assert access.problems() == {}


@pytest.mark.parametrize("status", [404, 409, 410, 422])
def test_what_is_about_one_object_or_its_version_is_no_matter_of_rights(status):
    access, _, _ = an_access()
    access(WRITE, KubeError(status, "no"))
    assert access.problems() == {}


def test_a_resource_that_is_not_there_is_a_problem():
    access, _, _ = an_access()
    access(Right("list", "earlyexitmodels"), KubeError(404, "the server could not find the requested resource"))
    assert "list earlyexitmodels" in access.problems()


def test_what_an_admission_webhook_says_of_one_object_is_no_matter_of_rights():
    access, _, counted = an_access()
    access(
        WRITE, KubeError(403, 'PATCH /x: 403 admission webhook "w.x" denied the request: not on a Monday', "Forbidden")
    )
    assert access.problems() == {}
    assert counted == [("patch", 403)]
