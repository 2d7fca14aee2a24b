"""A headless chromium, asked by its debugging protocol: sizes of screens, colour schemes, keys, memory."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SECONDS = 60.0


class Tab:
    """One page. Create it with :func:`open_tab`."""

    def __init__(self, socket):
        self._socket, self._asked, self._events = socket, 0, []

    async def call(self, method, **parameters):
        """Call a method of the protocol, and return its result."""
        self._asked += 1
        await self._socket.send_json({"id": self._asked, "method": method, "params": parameters})
        while True:
            answer = await self._socket.receive_json(timeout=SECONDS)
            if answer.get("id") == self._asked:
                assert "error" not in answer, answer
                return answer["result"]
            self._events.append(answer.get("method"))

    async def run(self, script):
        """Return the value of an expression, awaited if it is a promise."""
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, condition):
        """Wait until an expression is true."""
        for _ in range(int(SECONDS * 20)):
            if await self.run(f"Boolean({condition})"):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{condition} is never true: {await self.run('document.body.innerText')}")

    async def show(
        self, url, width=1100, height=760, *, dark=False, ready="document.readyState === 'complete'"
    ):
        """Go to a page in a window of some size, and wait until it is ready."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call("Page.navigate", url="about:blank")  # another address of the same page loads nothing
        await self.call("Page.navigate", url=url)
        await self.until(f"location.href !== 'about:blank' && {ready}")

    async def text(self, url):
        """Go to a page; its elements when 20 seconds have passed for its scripts, and nothing is loading."""
        await self.call("Page.navigate", url="about:blank")
        await self.call("Emulation.setVirtualTimePolicy", policy="pause")
        await self.call("Page.navigate", url=url)
        self._events.clear()
        policy = {"policy": "pauseIfNetworkFetchesPending", "budget": 20_000}
        await self.call("Emulation.setVirtualTimePolicy", **policy)
        while "Emulation.virtualTimeBudgetExpired" not in self._events:
            self._events.append((await self._socket.receive_json(timeout=SECONDS)).get("method"))
        return await self.run("document.documentElement.outerHTML")

    async def press(self, key):
        """Press and release a key, such as ``ArrowRight``."""
        number = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}[key]
        pressed = {"key": key, "code": key, "windowsVirtualKeyCode": number}
        text = {"text": "\r"} if key == "Enter" else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **pressed, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **pressed)

    async def picture(self, whole=False):
        """Return a PNG file of the window, or of the whole page."""
        return base64.b64decode(
            (await self.call("Page.captureScreenshot", captureBeyondViewport=whole))["data"]
        )


class Browser:
    """A running chromium. Start it with :func:`start_browser`."""

    def __init__(self, session, port):
        self._session, self._address = session, f"http://127.0.0.1:{port}/json"

    @asynccontextmanager
    async def open_tab(self):
        """Open a page; it is closed with the block."""
        async with self._session.put(f"{self._address}/new?about:blank") as answer:
            page = await answer.json()
        async with self._session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            yield Tab(socket)
        async with self._session.get(f"{self._address}/close/{page['id']}") as answer:
            await answer.read()


@asynccontextmanager
async def start_browser(*options):
    """Start a chromium with a profile of its own; it ends with the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, "--headless", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
        command += ["--disable-extensions", "--disable-sync", "--disable-background-networking"]
        command += ["--disable-component-update", "--disable-default-apps", "--mute-audio"]
        command += [f"--user-data-dir={profile}", "--remote-debugging-port=0", *options]
        command += ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = subprocess.Popen(
            [*command, "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            port_file = Path(profile) / "DevToolsActivePort"
            while not (port_file.exists() and port_file.read_text().count("\n")):
                assert browser.poll() is None, "chromium ended"
                await asyncio.sleep(0.05)
            async with aiohttp.ClientSession() as session:
                yield Browser(session, port_file.read_text().split()[0])
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(browser.pid, signal.SIGKILL)
            browser.wait()


@asynccontextmanager
async def open_tab(*options):
    """Start a chromium, and open a page; both end with the block."""
    async with start_browser(*options) as browser, browser.open_tab() as tab:
        yield tab
