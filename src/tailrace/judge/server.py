"""One request to an OpenAI-compatible server. The caller may give it up from another thread."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

_MOST_BYTES = 2**24
_SHOWN = 200


class ServerFailed(Exception):
    """The server gave no reply that can be read; the message says how."""


class ServerRequest:
    """Owns one connection. No proxy is used, and redirections are not followed."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        """``timeout_s``: the longest silence of the server. It may still take longer altogether."""
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
        self._path, self._url = parts.path, url

    def post(self, body: dict[str, Any], *, key: str | None) -> Any:
        """The decoded reply; ``ServerFailed`` if there is none."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        try:
            self._connection.request("POST", self._path, json.dumps(body).encode(), headers)
            reply = self._connection.getresponse()
            data = reply.read(_MOST_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise ServerFailed(f"no reply from {self._url}: {type(error).__name__}: {error}") from error
        finally:
            self._connection.close()
        if reply.status != http.HTTPStatus.OK:
            said = " ".join(data.decode(errors="replace").split())[:_SHOWN]
            raise ServerFailed(f"{self._url} answered with status {reply.status}: {said}")
        try:
            return json.loads(data)
        except ValueError as error:
            raise ServerFailed(f"{self._url} answered with something that is no JSON: {error}") from error

    def give_up(self) -> None:
        """End a request that another thread waits for."""
        if (own := self._connection.sock) is not None:
            with suppress(OSError):
                own.shutdown(socket.SHUT_RDWR)
