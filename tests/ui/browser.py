"""A real browser, headless: Chromium over the pipe of its DevTools protocol, which needs no package and opens no port."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Self

OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe", "--no-first-run",
    "--disable-dev-shm-usage", "--disable-background-networking",
)  # fmt: skip
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE_S = 60.0
KEY_CODES = {"Enter": 13, "Escape": 27, "/": 191, "?": 191, "Tab": 9}

LAUNCHER = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(text), fcntl.F_DUPFD, 20) for text in sys.argv[1:3])
os.dup2(reads, 3)
os.dup2(writes, 4)
os.closerange(5, 256)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Makes the two pipes descriptors 3 and 4, as the browser wants them."""


def find_browser() -> str | None:
    """Return the path of a Chromium, None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


class BrowserError(Exception):
    """The browser refused a command, or ended."""


class Browser:
    """One browser with one page. ``problems`` has what the page logged as an error, and what failed in its scripts."""

    def __init__(self, path: str, scratch: Path) -> None:
        self.problems: list[str] = []
        self._profile = tempfile.mkdtemp(prefix="browser-", dir=scratch)
        to_child, self._out = os.pipe()
        self._in, from_child = os.pipe()
        command = [path, *OPTIONS, f"--user-data-dir={self._profile}"]
        launch = [sys.executable, "-S", "-c", LAUNCHER, str(to_child), str(from_child), *command]
        self._process = subprocess.Popen(
            launch, pass_fds=(to_child, from_child), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_child)
        os.close(from_child)
        self._numbers = itertools.count(1)
        self._bytes = bytearray()
        self._events: deque[dict[str, Any]] = deque(maxlen=1000)
        self._session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and remove its profile."""
        os.close(self._out)
        os.close(self._in)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)

    # --- the protocol ------------------------------------------------------------------------------------------------

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._next(deadline)
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self, deadline: float) -> dict[str, Any]:
        while (end := self._bytes.find(b"\0")) < 0:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self._in, 1 << 16) if ready else b""
            if not piece:
                raise BrowserError("the browser did not answer")
            self._bytes += piece
        message: dict[str, Any] = json.loads(self._bytes[:end])
        del self._bytes[: end + 1]
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        found = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(str(found["exceptionDetails"].get("exception", {}).get("description", found)))
            case "Runtime.consoleAPICalled" if found["type"] in ("error", "warning", "assert"):
                self.problems.append(str(found["args"]))
            case "Log.entryAdded" if found["entry"]["level"] in ("error", "warning"):
                self.problems.append(f"{found['entry']['text']} ({found['entry'].get('url')})")
        if "method" in message:
            self._events.append(message)

    # --- the page ----------------------------------------------------------------------------------------------------

    def window(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Give the page a window of this size, dark or light."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = "dark" if dark else "light"
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def scripts(self, on: bool) -> None:
        """Switch the scripts of pages on or off. ``run`` works either way."""
        self.send("Emulation.setScriptExecutionDisabled", value=not on)

    def go(self, url: str) -> None:
        """Load a page, and return when it is there."""
        self._events.clear()
        told = self.send("Page.navigate", url=url)
        if told.get("errorText"):
            raise BrowserError(f"{url}: {told['errorText']}")
        self.loaded()

    def loaded(self) -> None:
        """Wait until the page that is being loaded is there."""
        deadline = time.monotonic() + PATIENCE_S
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._next(deadline)
        self._events.clear()

    def run(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript in the page."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise BrowserError(f"{expression}: {result['exceptionDetails'].get('exception', {}).get('description')}")
        return result["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until the expression is true, and return its value."""
        deadline = time.monotonic() + PATIENCE_S
        while not (value := self.tried(expression)):
            if time.monotonic() > deadline:
                raise BrowserError(f"it did not become true: {expression}; the page says {self.tried('document.body.innerText')!r:.2000}")
            time.sleep(0.05)
        return value

    def tried(self, expression: str) -> Any:
        """Return the value of the expression, None while the page is being exchanged for another."""
        try:
            return self.run(expression)
        except BrowserError:
            return None

    def key(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            code = KEY_CODES.get(key, ord(key.upper()) if len(key) == 1 else 0)
            text = "\r" if key == "Enter" else key if len(key) == 1 else ""
            parts = {"key": key, "windowsVirtualKeyCode": code, "nativeVirtualKeyCode": code}
            self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **parts)
            self.send("Input.dispatchKeyEvent", type="keyUp", **parts)

    def picture(self, to: Path, *, whole: bool = False) -> Path:
        """Write a picture of the window, or of the whole page, as PNG."""
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        to.write_bytes(base64.b64decode(data))
        return to
