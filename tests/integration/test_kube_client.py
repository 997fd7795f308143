"""Who watches a client of the Kubernetes API hears of every call that failed."""

import contextlib
import socket
import threading

import pytest
from kubernetes.client import Configuration

from apparate.service.kube import KubeClient, KubeError, Right


def answer_once(listening: socket.socket, content: bytes) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(content)


@pytest.mark.parametrize(
    ("content", "fails"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", True),
        (b"", True),
    ],
    ids=["whole", "headers only", "nothing"],
)
def test_a_call_whose_answer_breaks_off_is_told_as_failed(content, fails):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=answer_once, args=(listening, content))
        server.start()
        configuration = Configuration()
        configuration.host = f"http://127.0.0.1:{listening.getsockname()[1]}"
        client, heard = KubeClient(configuration), []
        client.observe = lambda right, error: heard.append((right, error))
        with contextlib.suppress(KubeError):
            client.call("GET", "/api/v1/namespaces/shop/pods", timeout_s=5)
        server.join()
        client.close()
    assert [right for right, _ in heard] == [Right("list", "pods", "shop")]
    assert (heard[0][1] is not None) == fails
