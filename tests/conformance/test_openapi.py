"""Requests that schemathesis makes of the OpenAPI document: each gets an answer that the document knows, none a 5xx.

Each case with a body is sent as it is and in seven other forms: to the other of the paths with and without a version,
compressed, as if binary data followed, and with bytes of its body changed. EEM_CONFORMANCE_CASES is how many cases are
made, EEM_CONFORMANCE_SEED which ones.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
from collections import Counter
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

from support.asgi import call

pytestmark = pytest.mark.conformance
CASES = int(os.environ.get("EEM_CONFORMANCE_CASES", "1500"))
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
SHARES = {  # of the cases
    ("POST /v2/models/{model}/infer", POSITIVE): 0.6,
    ("POST /v2/models/{model}/versions/{version}/infer", NEGATIVE): 0.2,
    ("POST /v2/repository/index", POSITIVE): 0.02,
    ("POST /v2/repository/index", NEGATIVE): 0.04,
    ("POST /v2/repository/models/{model}/load", POSITIVE): 0.02,
    ("POST /v2/repository/models/{model}/unload", POSITIVE): 0.02,
}
REST = 0.1
SERVED = {"model": "tiny", "version": "1"}


def ask(served: Any, case: Any, form: str, dice: random.Random) -> Response:
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
    told = [(k.encode("latin-1", "replace"), v.encode("latin-1", "replace")) for k, v in headers.items()]
    status, said, content = served.run(call(served.face, asked.method, asked.url, told, body))
    return Response(status, {k: [v] for k, v in said.items()}, content, asked, 0.0, verify=False)


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
def operations(served: Any) -> dict[str, Any]:
    """By label. The header for binary data is left out: it is set, right and wrong, by `ask`."""
    status, _, content = served.run(call(served.face, "GET", "/openapi.json", [], b""))
    assert status == 200
    document = json.loads(content)
    for path in document["paths"].values():
        path.get("post", {}).pop("parameters", None)
    schema = schemathesis.openapi.from_dict(document)
    return {one.ok().label: one.ok() for one in schema.get_all_operations()}


def test_what_schemathesis_makes_of_the_document_is_answered_as_it_says(served: Any, operations: dict[str, Any]):
    dice, statuses = random.Random(SEED), Counter[int]()
    for (label, mode), share in SHARES.items():
        statuses += sent(served, operations[label], mode, int(CASES * share), dice)
    others = [one for one in operations.values() if (one.label, POSITIVE) not in SHARES and one.method == "get"]
    for one in others:
        statuses += sent(served, one, POSITIVE, int(CASES * REST / len(others)), dice)
    print(f"{sum(statuses.values())} requests: {dict(statuses)}", file=sys.stderr)
    assert max(statuses) < 500
    assert statuses[200] > CASES / 3  # else it was all refused at the door
    assert sum(statuses.values()) > 3 * CASES


def sent(served: Any, operation: Any, mode: Any, cases: int, dice: random.Random) -> Counter[int]:
    """Statuses of the answers to so many cases of an operation, all of them as the document says."""
    statuses = Counter[int]()

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
        if case.path_parameters and "repository" not in case.path and dice.random() < 0.8:  # else most are 404
            case.path_parameters |= {k: v for k, v in SERVED.items() if k in case.path_parameters}
        for form in FORMS if case.method == "POST" else FORMS[:1]:
            response = ask(served, case, form, dice)
            statuses[response.status_code] += 1
            assert response.status_code < 500, (form, case.as_curl_command(), response.content)
            if form == "as it is":
                case.validate_response(response, checks=CHECKS)

    go()
    return statuses
