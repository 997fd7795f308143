"""Requests that schemathesis makes of the OpenAPI document: each gets an answer that the document knows, none a 5xx.

They go over a socket to a worker in a process of its own, which must be as well afterwards as before. Each case with a
body is sent as it is and in seven other forms: to the other of the paths with and without a version, compressed, as if
binary data followed, and with bytes of its body changed. EEM_CONFORMANCE_CASES is how many cases are made,
EEM_CONFORMANCE_SEED which ones.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.checks import not_a_server_error
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

pytestmark = pytest.mark.conformance
CASES = int(os.environ.get("EEM_CONFORMANCE_CASES", "1000"))
SEED = int(os.environ.get("EEM_CONFORMANCE_SEED", "1"))
BASE = "http://worker"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
FORMS = ("as it is", "other path", "compressed", "with a length", *["changed"] * 4)
POSITIVE, NEGATIVE = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
LAST = ("POST /v2/models/{model}/infer", POSITIVE)  # gets what is left: of some operations there are few cases
SHARES = {  # of the cases
    ("POST /v2/models/{model}/versions/{version}/infer", NEGATIVE): 0.2,
    ("POST /v2/repository/index", POSITIVE): 0.02,
    ("POST /v2/repository/index", NEGATIVE): 0.04,
    ("POST /v2/repository/models/{model}/load", POSITIVE): 0.02,
    ("POST /v2/repository/models/{model}/unload", POSITIVE): 0.02,
}
REST = 0.1
SERVED = {"model": "tiny", "version": "1"}


class Wire:
    """One connection to a worker, opened anew where an answer says that it is closed. No answer is an error."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._connection = HTTPConnection(host, int(port), timeout=30)

    def __call__(self, asked: Any, headers: dict[str, str], body: bytes) -> Response:
        """The answer to a prepared request, with other headers and another body."""
        connection = self._connection
        connection.putrequest(asked.method, asked.path_url, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value.encode("latin-1", "replace"))
        connection.endheaders(body)
        said = connection.getresponse()
        told: dict[str, list[str]] = {}
        for name, value in said.getheaders():
            told.setdefault(name.lower(), []).append(value)
        return Response(said.status, told, said.read(), asked, 0.0, verify=False)

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()


@dataclass
class Sent:
    """What was sent so far, and how it was answered."""

    cases: int = 0
    statuses: Counter[int] = field(default_factory=Counter)


def ask(wire: Wire, case: Any, form: str, dice: random.Random) -> Response:
    """The answer to a case in one of its forms."""
    asked = requests.Request(**{k: v for k, v in case.as_transport_kwargs(BASE).items() if k != "timeout"}).prepare()
    body = asked.body or b""
    body = body.encode() if isinstance(body, str) else bytes(body)
    headers = {str(k): str(v) for k, v in asked.headers.items()}
    if form == "other path":
        asked.url = other_path(asked.url)
    elif form == "with a length":
        headers["Inference-Header-Content-Length"] = str(
            dice.choice([0, len(body), dice.randint(0, len(body)), 10**11])
        )
    elif form == "compressed":
        body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
        headers["Accept-Encoding"] = "gzip"
    elif form == "changed" and body:
        body = changed(body, dice)
    headers["Content-Length"] = str(len(body))
    return wire(asked, headers, body)


def other_path(url: str) -> str:
    return url.replace("/versions/1/", "/") if "/versions/1/" in url else url.replace("/infer", "/versions/1/infer")


def changed(body: bytes, dice: random.Random) -> bytes:
    """A few bytes are others, missing or there twice."""
    found = bytearray(body)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(found) + 1)
        found[at : at + dice.choice([0, 1, 1, 8])] = dice.choice(
            [b"", b"\x00", b"9", b"-", b'"', b"[", b"}", b"\xff", b"null"]
        )
    return bytes(found)


@pytest.fixture(scope="module")
def operations(apart: Any) -> dict[str, Any]:
    """By label. The header for binary data is left out: it is set, right and wrong, by `ask`."""
    document = requests.get(f"http://{apart.http}/openapi.json", timeout=30).json()
    for path in document["paths"].values():
        path.get("post", {}).pop("parameters", None)
    schema = schemathesis.openapi.from_dict(document)
    return {one.ok().label: one.ok() for one in schema.get_all_operations()}


def test_what_schemathesis_makes_of_the_document_is_answered_as_it_says(apart: Any, operations: dict[str, Any]):
    dice, found = random.Random(SEED), Sent()
    others = [one for one in operations.values() if one.method == "get"]
    with contextlib.closing(Wire(apart.http)) as wire:
        for one in others:
            send(wire, one, POSITIVE, int(CASES * REST / len(others)), dice, found)
        for (label, mode), share in SHARES.items():
            send(wire, operations[label], mode, int(CASES * share), dice, found)
        send(wire, operations[LAST[0]], LAST[1], CASES - found.cases, dice, found)
    statuses = found.statuses
    print(f"{found.cases} cases, {sum(statuses.values())} requests: {dict(statuses)}", file=sys.stderr)
    assert max(statuses) < 500
    assert statuses[200] > CASES / 3  # else it was all refused at the door
    assert (found.cases, sum(statuses.values()) > 3 * CASES) == (CASES, True)
    apart.is_well()


def send(wire: Wire, operation: Any, mode: Any, cases: int, dice: random.Random, found: Sent) -> None:
    """So many cases of an operation, or all that there are; each is answered as the document says."""
    most = found.cases + cases

    @hypothesis.seed(SEED)
    @hypothesis.settings(
        max_examples=max(cases, 1),
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(operation.as_strategy(generation_mode=mode))
    def go(case: Any) -> None:
        if found.cases == most:
            return
        found.cases += 1
        if case.path_parameters and "repository" not in case.path and dice.random() < 0.8:  # else most are 404
            case.path_parameters |= {k: v for k, v in SERVED.items() if k in case.path_parameters}
        for form in FORMS if case.method == "POST" else FORMS[:1]:
            response = ask(wire, case, form, dice)
            found.statuses[response.status_code] += 1
            assert response.status_code < 500, (form, case.as_curl_command(), response.content)
            if form == "as it is":
                case.validate_response(response, checks=CHECKS)

    go()
