"""Models behind the address of a controller, as in local mode."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from apparate.cli.errors import BAD_INPUT, FAILED, CommandError
from apparate.cli.target import Json, asker, key_of, token

UNAUTHORIZED, NOT_FOUND = 401, 404
MODELS = "/v1/models"
NO_CONTROLLER = (
    "no controller, perhaps a worker: `apparate serve` prints the controller's address after `watch:` (--url)"
)
TIMEOUT_S = 20.0  # what-if tries many budgets


class LocalTarget:
    """The controller at an address."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise CommandError(f"--url is {url!r}, must start with http:// or https://", BAD_INPUT)
        self._url = url.rstrip("/")

    def views(self) -> list[Json]:
        """See Target."""
        return [self._call("GET", f"/v1/models/{key}") for key in self._names()]

    def view(self, name: str) -> Json:
        """See Target."""
        known = self._names()
        wanted = [key for key in known if name in (key, key.partition("/")[2])]
        if len(wanted) != 1:
            what = f"{name} is in {', '.join(wanted)}" if wanted else f"there is no model {name}"
            raise CommandError(f"{what}; models are: {', '.join(known) or 'none'}", BAD_INPUT)
        found: Json = self._call("GET", f"/v1/models/{wanted[0]}")
        return found

    def plans(self, key: str) -> list[Json]:
        """See Target."""
        found: list[Json] = self._call("GET", f"/v1/models/{key}/plans")
        return found

    def pause(self, key: str, paused: bool) -> None:
        """See Target."""
        self._call("PUT", f"/v1/models/{key}/paused", {"paused": paused, "by": asker()})

    def roll_back(self, key: str, revision: int) -> Json:
        """See Target."""
        found: Json = self._call("POST", f"/v1/models/{key}/rollback", {"revision": revision, "by": asker()})
        return found

    def _names(self) -> list[str]:
        found = self._call("GET", MODELS)
        if not isinstance(found, dict) or not isinstance(found.get("models"), list):
            raise CommandError(f"{self._url} is {NO_CONTROLLER}")
        return [key_of(one) for one in found["models"]]

    def asked(self, key: str, question: str) -> Json:
        """See Target."""
        found: Json = self._call("GET", _path(key, question))
        return found

    def fetched(self, key: str, question: str) -> bytes:
        """See Target."""
        return self._read("GET", _path(key, question))

    def _call(self, method: str, path: str, body: Json | None = None) -> Any:
        try:
            return json.loads(self._read(method, path, body))
        except ValueError:
            raise CommandError(f"{self._url}{path}: the answer is not JSON: that is {NO_CONTROLLER}") from None

    def _read(self, method: str, path: str, body: Json | None = None) -> bytes:
        request = urllib.request.Request(self._url + path, method=method, headers=token())
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                return bytes(response.read())
        except urllib.error.HTTPError as error:
            with error:
                told = _detail(error.read())
            status = BAD_INPUT if error.code in (409, 422) else FAILED
            if error.code == UNAUTHORIZED:
                raise CommandError(f"{self._url}: {told}; put it into APPARATE_CONTROLLER_TOKEN", BAD_INPUT) from None
            if error.code == NOT_FOUND and path == MODELS:
                raise CommandError(f"{self._url} answers {error.code} and is {NO_CONTROLLER}") from None
            said = told or f"the controller answered {error.code} {error.reason}"
            raise CommandError(said if error.code == 409 else f"{self._url}{path}: {said}", status) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise CommandError(
                f"no controller at {self._url}: {reason}; is `apparate serve` running? Another address: --url; "
                "models of a cluster: kubectl apparate, or -n NAMESPACE",
                FAILED,
            ) from None


def _path(key: str, question: str) -> str:
    return f"/v1/models/{key}/{question}".rstrip("/")


def _detail(text: bytes) -> str:
    try:
        detail = json.loads(text)["detail"]
    except (ValueError, KeyError, TypeError):
        return ""
    return detail if isinstance(detail, str) else ""
