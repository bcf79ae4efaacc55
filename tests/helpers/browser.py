"""A headless Chromium, driven by its DevTools protocol through a pair of pipes."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATH = next(filter(None, map(shutil.which, NAMES)), None)
MISSING = f"no browser: none of {', '.join(NAMES)} is installed"
SECONDS = 60.0
"""Within which every answer has to come."""


class Page:
    """A tab. `complaints` are what its console had of errors and warnings, and exceptions."""

    def __init__(self, to: int, source: int) -> None:
        self._to, self._from, self._number, self._rest = to, source, 0, b""
        self._session: dict[str, str] = {}
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": found["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **given: Any) -> Any:
        """The answer to a command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": given, **self._session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        for answer in self._messages():
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
        raise AssertionError(f"{method}: no answer")

    def _messages(self) -> Iterator[dict[str, Any]]:
        until = time.monotonic() + SECONDS
        while True:
            while b"\0" not in self._rest:
                ready, _, _ = select.select([self._from], [], [], until - time.monotonic())
                assert ready, "the browser is silent"
                more = os.read(self._from, 1 << 20)
                assert more, "the browser has ended"
                self._rest += more
            text, _, self._rest = self._rest.partition(b"\0")
            message = json.loads(text)
            self._note(message.get("method"), message.get("params"))
            yield message

    def _note(self, method: str | None, told: Any) -> None:
        if method == "Runtime.exceptionThrown":
            what = told["exceptionDetails"]
            self.complaints.append(what.get("exception", {}).get("description", what["text"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
            self.complaints.append(str([a.get("value", a) for a in told["args"]]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])

    def open(self, url: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Shows this address, and waits until it is loaded."""
        phone = {"mobile": width < 600, "deviceScaleFactor": 2 if width < 600 else 1}
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, **phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, script: str) -> Any:
        """What an expression is there."""
        how = {"returnByValue": True, "awaitPromise": True}
        found = self.call("Runtime.evaluate", expression=script, **how)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str) -> None:
        """Returns when the expression is true."""
        until = time.monotonic() + SECONDS
        while not self.value(script):
            assert time.monotonic() < until, script
            time.sleep(0.02)

    def move(self, x: float, y: float) -> None:
        """Moves the mouse."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def drag(self, x: float, y: float, to: float) -> None:
        """Drags with the mouse, along a row."""
        button = {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, **button)
        for k in range(1, 5):
            at = x + (to - x) * k / 4
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=at, y=y, buttons=1)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=to, y=y, **button)

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {**size, "scale": 1}
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browser() -> Iterator[Page]:
    """A tab of a new browser, which has a profile of its own."""
    assert PATH is not None, MISSING
    commands, to = os.pipe()
    source, answers = os.pipe()
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--no-first-run", "--disable-background-networking", "--remote-debugging-pipe",
                 f"--user-data-dir={profile}", "about:blank"]  # fmt: skip
        script = f'exec "$@" 3<&{commands} 4>&{answers}'
        process = subprocess.Popen(
            ["bash", "-c", script, "bash", PATH, *flags],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        try:
            yield Page(to, source)
        finally:
            process.terminate()
            process.wait(SECONDS)
            os.close(to)
            os.close(source)
