"""A server on loopback that speaks as OpenAI-compatible ones do, or fails in the ways they fail."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LIKELY = {"Yes": 0.6, "No": 0.2, "Maybe": 0.1}
"""What the judge says first, and how likely."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str | None, dict[str, Any]]] = []
        """Path, key and body of each request."""
        self.gate = threading.Event()
        self.ends = threading.Event()
        self.num_open = self.most_open = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append((self.path, self.headers.get("Authorization"), body))
            self.server.num_open += 1
            self.server.most_open = max(self.server.most_open, self.server.num_open)
        try:
            self._obey(body)
        finally:
            with self.server.lock:
                self.server.num_open -= 1

    def _obey(self, body: dict[str, Any]) -> None:
        text = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        if "GATE" in text:
            self.server.gate.wait()
        if "SILENT" in text:
            self.server.ends.wait()
        elif "DRIP" in text:
            self._drip()
        elif "DENIED" in text:
            key = self.headers.get("Authorization")
            self._send(401, json.dumps({"error": f"wrong key {key}"}))
        elif "REPLY " in text:
            self._send(200, text.partition("REPLY ")[2])
        elif "BROKEN" in text:
            self._send(200, "{'choices'")
        elif "EMPTY" in text:
            self._send(200, json.dumps({"choices": []}))
        elif "HANG UP" in text:
            self.connection.close()
        else:
            self._send(200, json.dumps(_reply(body, text)))

    def _drip(self) -> None:
        """Send a byte now and then, for ever."""
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        try:
            while not self.server.ends.wait(0.1):
                self.wfile.write(b" ")
        except OSError:
            pass  # the client has given up

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _reply(body: dict[str, Any], text: str) -> dict[str, Any]:
    said = text.partition("SAY ")[2] or "Yes"
    likely = {"perhaps": 0.9} if "VAGUE" in text else LIKELY
    logprobs = {word: math.log(share) for word, share in likely.items()}
    is_chat = "messages" in body
    choice: dict[str, Any] = {"message": {"role": "assistant", "content": said}} if is_chat else {"text": said}
    if "logprobs" in body:
        listed = [{"token": word, "logprob": logprob} for word, logprob in logprobs.items()]
        choice["logprobs"] = (
            {"content": [{"token": said, "top_logprobs": listed}]} if is_chat else {"top_logprobs": [logprobs]}
        )
    return {"choices": [choice], "usage": {"prompt_tokens": 7}}


@contextmanager
def openai_server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.gate.set()
        server.ends.set()
        server.shutdown()
        server.server_close()
        thread.join()
