"""How the services' HTTP servers speak."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Http(HttpToolsProtocol):
    """A request to speak another protocol is answered over HTTP/1.1, as RFC 9110 has it, and is nobody's fault."""

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: any client could fill the log."""
