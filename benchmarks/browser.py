"""Headless chromium by its DevTools protocol over two pipes: standard library only, no driver to install.

A message is one JSON object that ends in a zero byte. Commands are answered by their id; everything else that comes is
an event and is kept in ``Tab.events``.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--remote-debugging-pipe",
)  # fmt: skip
_READS, _WRITES = 3, 4
"""The descriptors chromium reads commands from and writes answers to."""


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One chromium with an empty profile; a context manager."""

    def __init__(self, program: str, *, timeout_s: float = 60.0) -> None:
        self._timeout_s = timeout_s
        self._profile = tempfile.TemporaryDirectory(prefix="tailrace-browser-", ignore_cleanup_errors=True)
        orders, self._orders = (_away_from_the_first_ten(end) for end in os.pipe())
        self._answers, answers = (_away_from_the_first_ten(end) for end in os.pipe())
        self._process = subprocess.Popen(
            [program, *_FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=(_READS, _WRITES),
            preexec_fn=lambda: (os.dup2(orders, _READS), os.dup2(answers, _WRITES)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(orders)
        os.close(answers)
        self._number, self._unread = 0, b""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=self._timeout_s)
        os.close(self._orders)
        os.close(self._answers)
        self._profile.cleanup()

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Give one command and wait for its answer."""
        self._number += 1
        order = {"id": self._number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._orders, json.dumps(order).encode() + b"\0")
        while True:
            message = self._read()
            if message.get("id") != self._number:
                self.events.append(message)
            elif "error" in message:
                raise RuntimeError(f"{method}: {message['error']['message']}")
            else:
                return dict(message["result"])

    def open_tab(self, *, width: int, height: int, is_dark: bool) -> Tab:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Tab(self, target, session, width=width, height=height, is_dark=is_dark)

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + self._timeout_s
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], max(deadline - time.monotonic(), 0.0))
            piece = os.read(self._answers, 1 << 20) if ready else b""
            if not piece:
                raise RuntimeError("chromium ended" if ready else f"chromium said nothing for {self._timeout_s:g} s")
            self._unread += piece
        message, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(message))


class Tab:
    """A page of a given size and colour scheme."""

    def __init__(self, browser: Browser, target: str, session: str, *, width: int, height: int, is_dark: bool) -> None:
        self._browser, self._target, self._session = browser, target, session
        self._width, self._height = width, height
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self._resize(height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def open(self, path: Path) -> None:
        self.call("Page.navigate", url=path.resolve().as_uri())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, waited for if it is a promise."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", expression))
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """What the page wrote to the console, what it threw and what the browser refused it."""
        mine = [event for event in self._browser.events if event.get("sessionId") == self._session]
        return [text for event in mine if (text := _complaint(event))]

    def screenshot(self, path: Path, *, is_whole_page: bool = False) -> None:
        if is_whole_page:
            self._resize(self.evaluate("document.documentElement.scrollHeight"))
        shot = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))
        self._resize(self._height)

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)

    def _resize(self, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=self._width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )


def _complaint(event: dict[str, Any]) -> str:
    details = event.get("params", {})
    match event.get("method"):
        case "Runtime.consoleAPICalled":
            words = " ".join(str(part.get("value", part.get("description"))) for part in details["args"])
            return f"console {details['type']}: {words}"
        case "Runtime.exceptionThrown":
            return "exception: " + str(details["exceptionDetails"].get("exception", {}).get("description"))
        case "Log.entryAdded":
            return f"{details['entry']['level']}: {details['entry']['text']}"
    return ""


def _away_from_the_first_ten(descriptor: int) -> int:
    """The same end of a pipe under a number that chromium's own two cannot overwrite."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved
