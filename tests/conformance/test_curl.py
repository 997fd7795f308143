"""curl asks a worker: what goes over the wire when no library of ours is in between."""

from __future__ import annotations

import gzip
import json
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.infer import binary_body, json_body
from support.models import a_prepared_model, items

pytestmark = pytest.mark.conformance
URL = "/v2/models/tiny/infer"


class Curl:
    """Runs curl against one worker."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.folder = address, folder

    def __call__(self, path: str, *options: str, body: bytes | None = None) -> tuple[int, dict[str, str], bytes]:
        """(status, headers in small letters, body) of the last answer."""
        head, answer = self.folder / "head", self.folder / "answer"
        head.unlink(missing_ok=True)
        answer.write_bytes(b"")
        sent = []
        if body is not None:
            (self.folder / "body").write_bytes(body)
            sent = ["--data-binary", f"@{self.folder / 'body'}"]
        command = ["curl", "-sS", "--max-time", "30", "-D", str(head), "-o", str(answer), *sent, *options]
        done = subprocess.run([*command, f"http://{self.address}{path}"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        *_, last = head.read_text().strip().split("\n\n")
        status, *lines = last.splitlines()
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return int(status.split()[1]), headers, answer.read_bytes()


@pytest.fixture
def curl(served: Any, tmp_path: Path) -> Curl:
    return Curl(served.http, tmp_path)


X = items(2)
WANTED = a_prepared_model().model({"x": torch.from_numpy(X)}).numpy()


def logits(body: bytes) -> np.ndarray:
    (output,) = [one for one in json.loads(body)["outputs"] if one["name"] == "logits"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def body_of(x: np.ndarray, **other: Any) -> bytes:
    return json.dumps(json_body(x, **other)).encode()


@pytest.mark.parametrize(
    "path", ["/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/v2/models/tiny", "/openapi.json"]
)
def test_what_takes_get_answers_in_json_of_the_length_it_says(curl: Curl, path: str):
    status, headers, body = curl(path)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert int(headers["content-length"]) == len(body)
    assert json.loads(body)


@pytest.mark.parametrize(
    "options", [[], ["-H", "Content-Type:"], ["-H", "Content-Type: text/plain"], ["--http1.0"], ["--http2"]]
)
def test_a_request_is_read_whatever_its_content_type_and_the_protocol_it_would_rather_speak(
    curl: Curl, options: list[str]
):
    status, _, body = curl(URL, *options, body=body_of(X))
    assert status == 200
    np.testing.assert_allclose(logits(body), WANTED, rtol=1e-5)


def test_a_chunked_body_is_read_as_any_other(curl: Curl):
    status, _, body = curl(URL, "-H", "Transfer-Encoding: chunked", body=body_of(X, id="a"))
    assert (status, json.loads(body)["id"]) == (200, "a")


def test_a_client_that_waits_for_100_continue_is_told_to_go_on(curl: Curl):
    status, _, body = curl(URL, "-H", "Expect: 100-continue", "--expect100-timeout", "20", body=body_of(X))
    assert status == 200
    np.testing.assert_allclose(logits(body), WANTED, rtol=1e-5)


def test_a_body_above_the_limit_is_refused_before_it_is_sent(curl: Curl):
    large = bytes(2 * 2**20)
    status, _, body = curl(
        URL, "-H", "Expect: 100-continue", "-H", f"Content-Length: {2**30}", "--expect100-timeout", "20", body=large
    )
    assert (status, "at most" in json.loads(body)["error"]) == (413, True)


@pytest.mark.parametrize(
    ("coding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", lambda b: zlib.compress(b)[2:-4])],
)
def test_a_compressed_body_is_inflated(curl: Curl, coding: str, pack: Any):
    status, _, body = curl(URL, "-H", f"Content-Encoding: {coding}", body=pack(body_of(X)))
    assert status == 200
    np.testing.assert_allclose(logits(body), WANTED, rtol=1e-5)


def test_a_large_answer_is_compressed_for_who_asks_for_it(curl: Curl):
    plain, packed = (curl(URL, *options, body=body_of(items(800))) for options in ([], ["--compressed"]))
    assert (plain[1].get("content-encoding"), packed[1].get("content-encoding")) == (None, "gzip")
    assert int(packed[1]["content-length"]) < len(plain[2])
    np.testing.assert_array_equal(logits(plain[2]), logits(packed[2]))


def test_binary_tensors_go_both_ways(curl: Curl):
    content, headers = binary_body(X)
    options = [text for name, value in headers.items() for text in ("-H", f"{name}: {value}")]
    status, said, body = curl(URL, *options, "-H", "Content-Type: application/octet-stream", body=content)
    length = int(said["inference-header-content-length"])
    outputs = json.loads(body[:length])["outputs"]
    assert (status, said["content-type"]) == (200, "application/octet-stream")
    assert sum(one["parameters"]["binary_data_size"] for one in outputs) == len(body) - length
    np.testing.assert_allclose(np.frombuffer(body[length:], "<f4", 6).reshape(2, 3), WANTED, rtol=1e-5)


@pytest.mark.parametrize(
    ("path", "options", "status", "allow"),
    [
        ("/v2/models/other", [], 404, None),
        ("/v2/models/tiny/versions/9", [], 404, None),
        ("/nothing", [], 404, None),
        ("/v2/models/%00%ff/ready", [], 404, None),
        (URL, ["-X", "GET"], 405, "POST"),
        ("/v2/models/tiny", ["-X", "POST"], 405, "GET"),
        ("/v2/health/live", ["-X", "DELETE"], 405, "GET, HEAD, POST"),
        (URL, ["-d", "not json"], 400, None),
        (URL, ["-d", '{"inputs": []}'], 400, None),
        (URL, ["-d", "x", "-H", "Content-Encoding: br"], 400, None),
        (URL, ["-d", "x", "-H", "Inference-Header-Content-Length: -1"], 400, None),
        (URL, ["-d", "x", "-H", "Content-Encoding: gzip"], 400, None),
        ("/v2/repository/models/tiny/unload", ["-X", "POST"], 403, None),
    ],
)
def test_an_error_is_json_with_its_status(curl: Curl, path: str, options: list[str], status: int, allow: str | None):
    found, headers, body = curl(path, *options)
    assert (found, headers["content-type"], headers.get("allow")) == (status, "application/json", allow)
    assert json.loads(body)["error"]


def test_one_connection_serves_many_requests(curl: Curl, tmp_path: Path):
    (tmp_path / "body").write_bytes(body_of(X))
    url = f"http://{curl.address}{URL}"
    once = ["--data-binary", f"@{tmp_path / 'body'}", "-o", "/dev/null", "-w", "%{http_code} %{num_connects}\\n", url]
    command = ["curl", "-sS", *once, *(text for _ in range(9) for text in ("--next", "-sS", *once))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["200", "1", *["200", "0"] * 9]
