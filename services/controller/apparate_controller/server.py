"""The HTTP server inside the process's own event loop, on a socket that was bound before anybody is told of it."""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI

from apparate.service.http import Http, HttpServer

SHUTDOWN_S = 3  # most time that an open request may take after SIGTERM


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError, for example when the port is in use."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(128)
    except OSError:
        found.close()
        raise
    return found


def http_server(app: FastAPI) -> HttpServer:
    """A server for `serve(sockets=[...])`; `should_exit = True` ends it."""
    config = uvicorn.Config(
        app,
        http=Http,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    return HttpServer(config)
