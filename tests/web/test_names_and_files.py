"""Names of models on a phone's screen, and models of several files."""

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect

from tests.external_model import write
from tests.jobs.service import Served
from tests.web.conftest import Watched

Opener = Callable[..., Watched]
LONG = "mobilenet_v2_1.4_224_frozen_with_quantized_weights.onnx"
PHONE = {"width": 375, "height": 800}
# Overlapping boxes of the name and of what else a row says, and lines of the name that break a word.
FAULTS = """(row) => {
  const name = row.querySelector('a.strong').getBoundingClientRect();
  const others = [...row.querySelectorAll('.badge, .phase, svg.bar, time')].map((e) => e.getBoundingClientRect());
  const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
  const range = document.createRange();
  const faults = others.filter((o) => o.width && !apart(name, o)).map((o) => `covered at ${o.left}, ${o.top}`);
  for (const text of [...row.querySelector('a.strong').childNodes].filter((n) => n.nodeType === 3)) {
    range.selectNodeContents(text);
    const lines = new Set([...range.getClientRects()].map((r) => r.top));
    if (lines.size > 1 && !text.data.includes(' ')) faults.push(`broken: ${text.data}`);
  }
  return faults;
}"""


def url(service: Served) -> str:
    return f"http://127.0.0.1:{service.settings.port}"


def named(service: Served, text: str, name: str) -> str:
    return str(service.http.post("/v1/models", params={"name": name}, content=text.encode()).json()["id"])


def test_nothing_covers_or_breaks_a_name_on_a_phone(service: Served, open_at: Opener) -> None:
    model = named(service, "sleep 600 long name", LONG)
    body = {"model": model, "targets": ["host"], "reuse": False}
    job = service.http.post("/v1/jobs", json=body).json()["id"]
    service.wait_for_phase(job, "begin")
    for path, rows in (("/jobs", f"#job-{job}"), ("/models", "table.models tbody tr"), ("/", f"#job-{job}")):
        it = open_at(url(service), path)
        it.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        row = it.page.locator(rows).first
        assert row.evaluate(FAULTS) == [], path
        assert row.locator("a.strong").inner_text().startswith(LONG[:40])
        assert it.page.evaluate("document.documentElement.scrollWidth") <= 375
    service.http.post(f"/v1/jobs/{job}/cancel")
    it.expect_clean()


def test_a_model_is_renamed_on_its_page(service: Served, open_at: Opener) -> None:
    model = named(service, "ok rename page", "before.onnx")
    it = open_at(url(service), f"/models/{model}")
    assert it.page.locator("h1").inner_text() == "before.onnx"
    it.page.click("#rename")
    it.page.fill(".naming input", "after <b>")
    it.page.click(".naming button")
    expect(it.page.locator("h1")).to_have_text("after <b>")
    assert it.page.title().startswith("after <b>")
    it.expect_clean()


def test_a_model_goes_up_with_its_external_data(service: Served, open_at: Opener, tmp_path: Path) -> None:
    model = write(tmp_path, "weights/w.bin")
    it = open_at(url(service), "/models")
    it.page.set_input_files("#file", [tmp_path / "weights" / "w.bin", model])
    it.page.wait_for_url("**/models/*")
    assert it.page.locator("h1").inner_text() == "external.onnx"
    files = service.http.get(f"/v1/models/{it.page.url.rpartition('/')[2]}").json()["files"]
    assert sorted(files) == ["", "weights/w.bin"]
    it.expect_clean()


def test_two_graphs_at_once_are_refused_with_what_was_expected(
    service: Served, open_at: Opener, tmp_path: Path
) -> None:
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / name).write_text("ok")
    it = open_at(url(service), "/models")
    it.page.set_input_files("#file", [tmp_path / "a.onnx", tmp_path / "b.onnx"])
    text = it.page.locator("#drop .problem").inner_text()
    assert (
        "Expected one .onnx file and its external data, or one -symbol.json and its parameters, found a.onnx, b.onnx."
        in text
    )


def test_the_api_page_is_dark_where_the_system_is(service: Served, open_at: Opener) -> None:
    it = open_at(url(service), "/docs")
    it.page.wait_for_selector(".opblock")
    shades = []
    for scheme in ("light", "dark"):
        it.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        # The browser tells the page of the change with its next frame.
        it.page.wait_for_function(
            "dark => document.documentElement.classList.contains('dark-mode') === dark", arg=scheme == "dark"
        )
        color = it.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        body = it.page.evaluate("getComputedStyle(document.body).backgroundColor")
        text = it.page.evaluate("getComputedStyle(document.querySelector('.swagger-ui .info .title')).color")
        shades.append((color, body, text))
    assert shades[0] != shades[1]
