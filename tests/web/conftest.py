"""A real Chromium, and a real service whose jobs have ended in every way."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.jobs.service import Served, serve
from tests.web.models import FREE, SMALL

ROOT = Path(__file__).resolve().parents[2]
SHOTS = ROOT / "build" / "screenshots"
WAYS = {"light": (1280, "light"), "dark": (1280, "dark"), "phone": (375, "light")}
PATIENCE = 120_000  # milliseconds: other tests and the jobs of this one use both cores
PREDICTED = {"timings": "predicted"}
# What the console says of a page that is not there.
EXPECTED = "Failed to load resource: the server responded with a status of 40"


def _chromium() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        reason = "no Chromium on this machine: apt-get install chromium"
        if os.environ.get("CI") == "true":  # noqa: TID251
            pytest.fail(reason)
        pytest.skip(reason)
    return found


# A module: while it lasts, the thread runs an event loop, and no other test can run one of its own.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = _chromium()
    with sync_playwright() as playwright:
        expect.set_options(timeout=PATIENCE)
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@dataclass
class Watched:
    """A page that notes what should not be: errors, and requests to others."""

    page: Page
    shots: bool
    faults: list[str] = field(default_factory=list)

    def expect_clean(self, *, but: str | None = None) -> None:
        found = [f for f in self.faults if but is None or but not in f]
        assert not found, found

    def shot(self, name: str) -> None:
        """A picture to look at, where `--shots` asks for it: no test depends on one, and one takes seconds."""
        if not self.shots:
            return
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.evaluate("scrollTo(0, 0)")
        self.page.screenshot(path=SHOTS / f"{name}.png", full_page=True)

    def first_paint(self) -> float:
        """Milliseconds from the start of the navigation."""
        return float(self.page.evaluate(_FIRST_PAINT))


# Nothing that Playwright would have to evaluate again: the pages' policy forbids that.
_FIRST_PAINT = """new Promise((done) => new PerformanceObserver((list) =>
  list.getEntriesByName('first-contentful-paint').forEach((e) => done(e.startTime))
).observe({ type: 'paint', buffered: true }))"""


def watched(context: BrowserContext, url: str, shots: bool) -> Watched:
    page = context.new_page()
    it = Watched(page, shots)
    page.on(
        "console",
        lambda m: it.faults.append(f"{m.type}: {m.text}") if m.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda e: it.faults.append(f"exception: {e}"))
    page.on("request", lambda r: None if r.url.startswith((url, "data:")) else it.faults.append(r.url))
    return it


@pytest.fixture
def open_at(chromium: Browser, pytestconfig: pytest.Config) -> Iterator[Callable[..., Watched]]:
    """Opens a page of a service in a browser of its own."""
    with contextlib.ExitStack() as stack:

        def opened(url: str, path: str) -> Watched:
            context = chromium.new_context(
                viewport={"width": 1280, "height": 900}, color_scheme="light", reduced_motion="reduce"
            )
            stack.callback(context.close)
            context.set_default_timeout(PATIENCE)
            it = watched(context, url, pytestconfig.getoption("--shots"))
            it.page.goto(url + path)
            return it

        yield opened


@dataclass
class Stock:
    """A service, with the ids of its models and jobs."""

    served: Served
    ids: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.served.settings.port}"

    def upload(self, name: str, content: bytes) -> str:
        answer = self.served.http.post("/v1/models", params={"name": f"{name}.onnx"}, content=content)
        self.ids[name] = str(answer.json()["id"])
        return self.ids[name]

    def ask(self, name: str, model: str, target: str, **body: Any) -> None:
        request = {"model": model, "targets": [target], **body}
        answer = self.served.http.post("/v1/jobs", json=request)
        assert answer.status_code == 202, answer.text
        self.ids[name] = str(answer.json()["id"])

    def end(self, name: str) -> dict[str, Any]:
        return self.end_of(self.ids[name])

    def end_of(self, job_id: str) -> dict[str, Any]:
        self.served.job(job_id, wait=60)
        return self.served.end(job_id, 60)


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stock]:
    """A service with the real engine; the jobs are on their way when it is handed out."""
    _chromium()
    with serve(tmp_path_factory.mktemp("pages"), engine="app.engine", workers=1, warm_children=1) as served:
        it = Stock(served, {})
        small = it.upload("small", SMALL)
        it.ask("first", small, "cpu-avx2", options=PREDICTED | {"pareto": True}, labels={"team": "vision"})
        it.ask("second", small, "cpu-avx512", options=PREDICTED)
        it.ask("failed", small, "cpu-avx2", options=PREDICTED | {"memory_budget": 1000})
        it.ask("waiting", small, "edge-npu", options={"timings": "measured"})
        it.upload("free", FREE)
        it.upload("broken", b"this is no model")
        yield it
