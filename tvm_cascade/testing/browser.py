"""A headless Chromium, driven over a pipe by the DevTools protocol: what a page says, asks for and looks like."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe", "--hide-scrollbars",
)  # fmt: skip
# the protocol is read from file 3 and written to file 4
_START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
_SECONDS = 60  # for one answer


def find_browser() -> str | None:
    """The path of a Chromium on this machine."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Page:
    """A tab. `requests` are the addresses asked for, `errors` what its console and its scripts complained of."""

    def __init__(self, source: int, sink: int) -> None:
        self._source, self._sink, self._rest = source, sink, b""
        self._number, self._session = 0, ""
        self._seen: list[str] = []
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer of the browser to one command of the protocol; raises `RuntimeError` where it refuses."""
        self._number += 1
        told = {"id": self._number, "method": method, "params": parameters}
        os.write(
            self._sink, json.dumps(told | ({"sessionId": self._session} if self._session else {})).encode() + b"\0"
        )
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def open(self, path: Path, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Show the file at `path` in a window of `width` by `height` pixels; the reader prefers dark colours, or light ones."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._seen.clear()
        self.call("Page.navigate", url=path.absolute().as_uri())
        while "Page.loadEventFired" not in self._seen:
            self._note(self._next())

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; raises `RuntimeError` where it throws."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key, by its name in `KeyboardEvent.key`."""
        code = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowRight": 39, "ArrowDown": 40}.get(
            key, 0
        )
        more: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        if len(key) == 1 or key == "Enter":
            more["text"] = "\r" if key == "Enter" else key
        self.call("Input.dispatchKeyEvent", type="keyDown", **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self, to: Path) -> None:
        """Write a picture of the whole page, as a .png."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        to.write_bytes(base64.b64decode(shot))

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + _SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._source], [], [], max(end - time.monotonic(), 0))
            read = os.read(self._source, 1 << 20) if ready else b""
            if not read:
                raise RuntimeError("the browser says nothing more")
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, told = event.get("method", ""), event.get("params", {})
        self._seen.append(method)
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(told["exceptionDetails"].get("exception", told)))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.errors.append(str(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.errors.append(told["entry"]["text"])


@contextmanager
def browser(executable: str, home: Path) -> Iterator[Page]:
    """A tab of a browser of its own, which keeps what it keeps in the folder `home` and ends with the block."""
    (commands, sink), (source, answers) = os.pipe(), os.pipe()
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (commands, answers)]  # above what they become
    process = subprocess.Popen(
        (sys.executable, "-c", _START, *map(str, ends), executable, *_OPTIONS, f"--user-data-dir={home}"),
        pass_fds=ends,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(home)},
    )
    for end in (commands, answers, *ends):
        os.close(end)
    try:
        yield Page(source, sink)
    finally:
        process.terminate()
        process.wait(30)
        os.close(sink)
        os.close(source)
