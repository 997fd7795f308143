"""Calls on the Kubernetes API that end in bounded time. Blocking: from asyncio, call them in a thread.

The `kubernetes` package loads credentials and sets TLS up; requests go straight to its connection pool, because here
every call has a timeout, no failure is retried behind the caller's back, and objects stay plain data. It is imported
by the functions that need it: that takes half a second and 40 MB, which local mode does without.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import urllib3

from apparate.contract.resource import GROUP, PLURAL, VERSION

Json = dict[str, Any]
CONNECT_TIMEOUT_S = 3.0
CALL_TIMEOUT_S = 10.0
MOST_OF_A_REFUSAL = 4096  # characters of an answer that is not the API server's own
CONNECTIONS = 16  # kept open for calls that run at the same time; a watch holds one as long as it lasts
APPLY, MERGE, PATCH = "application/apply-patch+yaml", "application/merge-patch+json", "application/json-patch+json"
MODELS = f"/apis/{GROUP}/{VERSION}"
GONE, CONFLICT, NOT_FOUND, FORBIDDEN, UNAUTHORIZED = 410, 409, 404, 403, 401
NO_RIGHT = ('" cannot ', "is attempting to grant RBAC permissions")
"""What the API server says to whoever may not do a thing, or may not give a right that it has not itself."""


class KubeError(RuntimeError):
    """The API server did not do what was asked; `status` is the HTTP status, 0 when no answer came."""

    def __init__(self, status: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.status, self.reason = status, reason

    @property
    def passing(self) -> bool:
        """Whether the same call may work a little later."""
        return self.status in (0, 408, 429) or self.status >= 500

    @property
    def lacks_right(self) -> bool:
        """Whether the caller may not do such a thing at all; what admission refuses of one object is a 403 too."""
        return self.status == FORBIDDEN and any(words in str(self) for words in NO_RIGHT)


VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, order=True)
class Right:
    """What a call needs to be allowed, in the words of a Role."""

    verb: str
    resource: str
    """With its subresource: earlyexitmodels/status."""
    namespace: str = ""

    @classmethod
    def of(cls, method: str, path: str, *, watching: bool = False) -> Right:
        """Of a request; a path that is no resource's is its own resource."""
        parts = path.strip("/").split("/")
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        if not rest:
            return cls(method.lower(), path)
        verb = VERBS.get(method, "get" if len(rest) > 1 else "list")
        return cls("watch" if watching else verb, "/".join([rest[0], *rest[2:]]), namespace)

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f" in namespace {self.namespace}" if self.namespace else "")


class InvalidKubeconfig(ValueError):
    """Credentials for the API server cannot be had; the message says where they were looked for."""


class KubeClient:
    """One API server with one identity."""

    def __init__(self, configuration: Any) -> None:
        from kubernetes.client.rest import RESTClientObject

        configuration.connection_pool_maxsize = CONNECTIONS
        self._configuration = configuration
        self._pool: urllib3.PoolManager = RESTClientObject(configuration).pool_manager
        self.observe: Callable[[Right, KubeError | None], None] = lambda right, error: None
        """Told of each call that ended, in the thread that made it: what it needed, and why it failed, if it did."""
        self.host: str = configuration.host

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: object = None,
        content_type: str = "application/json",
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Json:
        """The answer to one request as plain data. Raises KubeError within `timeout_s` and the connect timeout."""
        text = self._read(method, path, query or {}, body, content_type, timeout_s)
        try:
            found: Json = json.loads(text) if text else {}
        except ValueError:
            raise KubeError(200, f"{method} {path}: the answer is not JSON") from None
        return found

    def fetch(self, path: str, *, timeout_s: float = CALL_TIMEOUT_S, headers: Mapping[str, str] | None = None) -> bytes:
        """An answer that may be anything, as of a Service behind the API server. Raises KubeError as `call` does."""
        return self._read("GET", path, {}, None, "", timeout_s, headers)

    def _read(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        body: object,
        content_type: str,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        kind = {"Content-Type": content_type} if data is not None else {}
        with self._observed(Right.of(method, path)):
            response = self._send(method, path, query, {**kind, **(headers or {})}, data, timeout_s)
            try:
                return bytes(response.read())
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise KubeError(0, f"{method} {path}: {_first_line(error)}") from None
            finally:
                response.release_conn()

    def stream(self, path: str, query: Mapping[str, Any], silence_s: float) -> urllib3.BaseHTTPResponse:
        """An answer that goes on; reading it raises when nothing came for `silence_s`. Close it."""
        with self._observed(Right.of("GET", path, watching=True)):
            return self._send("GET", path, query, {}, None, silence_s)

    def close(self) -> None:
        """Close idle connections."""
        self._pool.clear()

    @contextlib.contextmanager
    def _observed(self, right: Right) -> Iterator[None]:
        try:
            yield
        except KubeError as error:
            self.observe(right, error)
            raise
        self.observe(right, None)

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        headers: dict[str, str],
        data: bytes | None,
        silence_s: float,
    ) -> urllib3.BaseHTTPResponse:
        url = f"{self.host}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            response = self._pool.request(
                method,
                url,
                body=data,
                headers={"Accept": "application/json", **self._identity(), **headers},
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=silence_s),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            if response.status >= 400:
                text = response.read()
                response.release_conn()
                raise _refusal(method, path, response.status, text)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise KubeError(0, f"{method} {path}: {_first_line(error)}") from None
        return response

    def _identity(self) -> dict[str, str]:
        """The bearer token, read anew when the one in use is about to expire."""
        found = self._configuration.auth_settings().get("BearerToken")
        return {found["key"]: found["value"]} if found and found["value"] else {}


def in_cluster() -> KubeClient:
    """A client with the pod's own token. Raises InvalidKubeconfig outside a pod."""
    from kubernetes import client, config

    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        raise InvalidKubeconfig(f"this is not a pod with a service account token: {error}") from None
    return KubeClient(configuration)


def from_kubeconfig(path: str = "", context: str = "") -> tuple[KubeClient, str]:
    """A client of a kubeconfig file, or of $KUBECONFIG, and its context's namespace. Raises InvalidKubeconfig."""
    from kubernetes import client, config

    configuration = client.Configuration()
    where = path or "the kubeconfig ($KUBECONFIG, or ~/.kube/config)"
    try:
        config.load_kube_config(  # type: ignore[no-untyped-call]
            path or None, context or None, client_configuration=configuration, persist_config=False
        )
        contexts, active = config.list_kube_config_contexts(path or None)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError, TypeError, ValueError) as error:
        raise InvalidKubeconfig(f"{where} cannot be used: {_first_line(error)}") from None
    chosen = next((one for one in contexts if one["name"] == context), active) if context else active
    return KubeClient(configuration), str(chosen["context"].get("namespace") or "default")


def client_of(kubeconfig: str) -> KubeClient:
    """A client of that kubeconfig, or with the pod's own token when it is empty. Raises InvalidKubeconfig."""
    return from_kubeconfig(kubeconfig)[0] if kubeconfig else in_cluster()


def models_path(namespace: str = "") -> str:
    """The EarlyExitModels of a namespace, or of all."""
    return f"{MODELS}/namespaces/{namespace}/{PLURAL}" if namespace else f"{MODELS}/{PLURAL}"


def model_path(namespace: str, name: str) -> str:
    """One EarlyExitModel."""
    return f"{models_path(namespace)}/{name}"


def apply_status(client: KubeClient, namespace: str, name: str, body: Json, manager: str) -> Json:
    """Server-side apply of one writer's whole share of a status; the object as it is now.

    Raises KubeError, with status CONFLICT when `body` names a resourceVersion or uid that is not the object's.
    """
    query = {"fieldManager": manager, "force": "true"}
    return client.call("PATCH", f"{model_path(namespace, name)}/status", query=query, body=body, content_type=APPLY)


def version_of(thing: Mapping[str, Any]) -> int:
    """The resourceVersion of an object or a list as a number, to tell which of two is newer; 0 when there is none."""
    text = str(thing.get("metadata", {}).get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0


def _refusal(method: str, path: str, status: int, text: bytes) -> KubeError:
    try:
        told = json.loads(text)
        message, reason = str(told.get("message", "")), str(told.get("reason", ""))
        if not message:  # it is not the API server's own: of a Service behind it
            message = text.decode(errors="replace")[:MOST_OF_A_REFUSAL]
    except (ValueError, AttributeError):
        message, reason = text.decode(errors="replace")[:200], ""
    return KubeError(status, f"{method} {path}: {status} {message}".rstrip(), reason)


def _first_line(error: BaseException) -> str:
    lines: Sequence[str] = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
