"""Chromium without a window, driven over a pipe: what a person would see."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"]
CHANGED = "ERR_NETWORK_CHANGED"  # Chromium gives up what it loads when a test of the lab makes a network device
AT_3_AND_4 = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3])
os.dup2(reads, 3), os.dup2(writes, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""  # where Chromium looks for its pipes


class Browser:
    """One tab; `said` has what its console said, and what its policies refused."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes, self._rest, self._number, self._session = reads, writes, b"", 0, ""
        self.said: list[str] = []
        self._loaded = False
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Performance", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> Any:
        self._number += 1
        word: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            word["sessionId"] = self._session
        os.write(self._writes, json.dumps(word).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._hear(answer)

    def open(self, address: str) -> None:
        self._loaded = False  # nothing of it has been seen
        self.ask("Page.navigate", url=address)

    def js(self, text: str) -> Any:
        """What an expression is."""
        answer = self.ask("Runtime.evaluate", expression=text, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, text: str, seconds: float = 30) -> Any:
        """What an expression is, once that is something; what it speaks of may not be there yet."""
        end = time.monotonic() + seconds
        while not (found := self.js(f"(() => {{ try {{ return {text} }} catch (error) {{ return null }} }})()")):
            if not self._loaded and any(CHANGED in line for line in self.said):
                self.said = [line for line in self.said if CHANGED not in line]
                self.ask("Page.reload")
            assert time.monotonic() < end, f"never: {text}; {self.said}; {self.js('document.body.innerText')[:2000]}"
            time.sleep(0.03)
        self._loaded = True
        return found

    def screen(self, width: int, height: int, dark: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def memory(self) -> int:
        """Bytes of the tab's process; of pages that it shares with other processes, its part (PSS)."""
        session, self._session = self._session, ""  # the browser knows its processes, a tab does not
        try:
            found = self.ask("SystemInfo.getProcessInfo")["processInfo"]
        finally:
            self._session = session
        files = [Path(f"/proc/{one['id']}/smaps_rollup") for one in found if one["type"] == "renderer"]
        lines = [line.split() for file in files for line in file.read_text().splitlines()]
        return 1024 * max(int(words[1]) for words in lines if words[0] == "Pss:")

    def _next(self) -> Any:
        while b"\0" not in self._rest:
            more = os.read(self._reads, 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        word, _, self._rest = self._rest.partition(b"\0")
        return json.loads(word)

    def _hear(self, event: Any) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.said.append(json.dumps(params["exceptionDetails"])[:500])
        if event.get("method") == "Log.entryAdded":
            self.said.append(params["entry"]["text"])


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    ours, theirs = os.pipe(), os.pipe()
    words = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        [sys.executable, "-c", AT_3_AND_4, str(ours[0]), str(theirs[1]), *words],
        pass_fds=(ours[0], theirs[1]), start_new_session=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(ours[0])
    os.close(theirs[1])
    try:
        yield Browser(theirs[0], ours[1])
    finally:
        os.close(ours[1])
        os.close(theirs[0])
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
