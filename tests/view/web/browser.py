"""A real browser: Debian's Chromium without a window, driven over the WebDriver protocol by the standard library."""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kafka_tools import need_tools
from tests.knobs import PICTURES, REQUIRE_KAFKA

_STARTED = re.compile(r"successfully on port (\d+)")
#: The key under which the protocol puts a reference to an element.
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_SECONDS_MAX = 240
_OPTIONS = ["--headless=new", "--hide-scrollbars", "--disable-gpu", "--no-first-run", "--disable-extensions"]


def need_browser() -> None:
    """Skip the test if there is no browser; fail if a browser is required."""
    need_tools("chromedriver", "chromium", packages="chromium chromium-driver")


class Browser:
    """One window."""

    def __init__(self, port: int, *, width: int, height: int = 1000, dark: bool = False) -> None:
        self._base = f"http://127.0.0.1:{port}"
        self._session = ""
        scheme = "--blink-settings=preferredColorScheme=0" if dark else "--blink-settings=preferredColorScheme=1"
        root = ["--no-sandbox"] if os.getuid() == 0 else []
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": [*_OPTIONS, *root, scheme, f"--window-size={width},{height}"]},
            "goog:loggingPrefs": {"browser": "ALL"},
            # axe-core is slow when many processes share two cores.
            "timeouts": {"script": 1000 * _SECONDS_MAX, "pageLoad": 1000 * _SECONDS_MAX},
        }
        answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{answer['sessionId']}"
        # A window cannot be made narrower than 500 pixels, but a screen can be.
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._command("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics})

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self._base + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(asked, timeout=_SECONDS_MAX) as answer:
            return json.load(answer)["value"]

    def _command(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return self._call(method, self._session + path, body)

    def open(self, url: str) -> None:
        self._command("POST", "/url", {"url": url})

    @property
    def title(self) -> str:
        return str(self._command("GET", "/title"))

    @property
    def url(self) -> str:
        return str(self._command("GET", "/url"))

    def arrive(self, part: str) -> None:
        """Wait until the page is one with this in its address."""
        until = time.monotonic() + 30
        while part not in self.url:
            assert time.monotonic() < until, self.url
            time.sleep(0.02)

    def run(self, script: str) -> Any:
        """Run a function body beside the page, outside the page's policy; return its result."""
        return self._command("POST", "/execute/sync", {"script": script, "args": []})

    def await_change(self, script: str, before: Any) -> None:
        """Wait until a function body returns something else."""
        until = time.monotonic() + 30
        while self.run(script) == before:
            assert time.monotonic() < until, before
            time.sleep(0.1)

    def await_text(self, words: str) -> None:
        """Wait until the page has these words; it may load itself again before."""
        until = time.monotonic() + 60
        while words not in self.run("return document.body.textContent"):
            assert time.monotonic() < until, words
            time.sleep(0.1)

    def find(self, xpath: str) -> str:
        """An element that is shown, as the protocol refers to it."""
        found = self._command("POST", "/elements", {"using": "xpath", "value": xpath})
        shown = [one[_ELEMENT] for one in found if self._command("GET", f"/element/{one[_ELEMENT]}/displayed")]
        assert shown, f"{xpath} is not shown at {self.url}"
        return str(shown[0])

    def named(self, role: str, name: str) -> str:
        """An element by its role and name, as the browser's accessibility tree has them."""
        tags = {"link": "//*[local-name()='a']", "button": "//button", "textbox": "//input", "heading": "//h1|//h2"}
        for one in self._command("POST", "/elements", {"using": "xpath", "value": tags[role]}):
            element = one[_ELEMENT]
            label = self._command("GET", f"/element/{element}/computedlabel")
            if label.startswith(name) and self._command("GET", f"/element/{element}/displayed"):
                found_role = self._command("GET", f"/element/{element}/computedrole")
                assert found_role in (role, "searchbox"), found_role
                return str(element)
        raise AssertionError(f"no {role} {name!r} at {self.url}")

    def findings(self) -> list[str]:
        """Serious and critical problems that axe-core finds on the page."""
        script = findings_script()
        return [] if script is None else list(self.run(script))

    def read_json(self) -> Any:
        """Follow the link to the page as JSON, and read that."""
        self.click(self.named("link", "this page as JSON"))
        self.arrive(".json")
        return json.loads(self.run("return document.querySelector('pre').textContent"))

    def back(self) -> None:
        self._command("POST", "/back", {})

    def click(self, element: str) -> None:
        self._command("POST", f"/element/{element}/click", {})

    def type(self, element: str, text: str) -> None:
        self._command("POST", f"/element/{element}/value", {"text": text})

    def press(self, keys: str) -> None:
        """Press keys, with the current focus."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._command("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def console(self) -> list[str]:
        """The browser's messages since the last call."""
        return [one["message"] for one in self._command("POST", "/se/log", {"type": "browser"})]

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._command("GET", "/screenshot")))

    def check_page(self, name: str) -> None:
        """The page has no script and no complaint, fits the screen, follows light and dark, and can be read.

        Args:
            name: of its picture, if pictures are wanted; empty: none is.
        """
        assert self.title.endswith(" · Cordwood")
        assert self.console() == []
        width, shown = self.run("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert width <= shown, "no part of the page but tables scrolls sideways"
        assert self.run("return document.scripts.length") == 0
        dark = self.run("return matchMedia('(prefers-color-scheme: dark)').matches")
        ground = self.run("return getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")
        assert self.run(_CONTRASTS) == []
        assert self.findings() == []
        if PICTURES and name:
            self.screenshot(Path(PICTURES) / f"{name}-{shown}-{'dark' if dark else 'light'}.png")

    def close(self) -> None:
        self._command("DELETE", "")


#: Elements with text of their own whose contrast is below that of WCAG 2 AA, 4.5 to 1.
_CONTRASTS = r"""
const light = c => { const [r, g, b] = c.match(/[\d.]+/g).slice(0, 3).map(v => v / 255)
  .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b }
const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor
  if (!/, 0\)$|transparent/.test(c)) return c } return 'rgb(255, 255, 255)' }
const bad = []
for (const e of document.querySelectorAll('body *')) {
  if (e.closest('svg') || !e.checkVisibility()) continue
  if (![...e.childNodes].some(n => n.nodeType == 3 && n.data.trim())) continue
  const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x)
  if ((a + 0.05) / (b + 0.05) < 4.5) bad.push(e.tagName + ' ' + e.textContent.slice(0, 40))
}
return bad
"""


@contextmanager
def driver() -> Iterator[int]:
    """A driver of browsers; the port that it listens on."""
    with subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            started = next(found for line in process.stdout if (found := _STARTED.search(line)))
            yield int(started[1])
        finally:
            process.terminate()


# ---- axe-core --------------------------------------------------------------------------------------------------------

# axe-core, which finds accessibility problems of a page; `fetch-axe` gets its script.

#: A function body that returns serious and critical violations, with the elements of each rule. The rows of a table
#: are alike, and axe-core takes milliseconds for each cell, so it looks at the first few.
_FINDINGS = """
return axe.run({exclude: ['tbody tr:nth-child(n+16)']}, {resultTypes: ['violations']}).then(found => {
  if (found.passes.length < 5) throw new Error('too few rules were run')
  return found.violations.filter(one => ['serious', 'critical'].includes(one.impact))
    .flatMap(one => one.nodes.map(node => `${one.id} (${one.impact}): ${node.html.slice(0, 200)}`))
})
"""


@functools.cache
def findings_script() -> str | None:
    """The script that finds them in a page; None if axe-core is not available. It is required where a browser is
    required.
    """
    command = [sys.executable, str(Path(__file__).parent / "fetch-axe")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        assert not REQUIRE_KAFKA, f"axe-core must be here: {done.stderr}"
        return None
    return Path(done.stdout.strip()).read_text() + _FINDINGS
