"""What a job achieved beside other runtimes leads its page, its report, lists and comparisons."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.web.conftest import WAYS, Stock, Watched

pytestmark = pytest.mark.long

Opener = Callable[..., Watched]


@pytest.fixture(scope="module")
def measured(stock: Stock) -> Stock:
    """A job that was measured on this machine, with few samples."""
    options = {"autotune": False, "benchmark_seconds": 0.1}
    request = {"model": stock.ids["small"], "targets": ["host"], "options": options}
    answer = stock.served.http.post("/v1/jobs", json=request)
    assert answer.status_code == 202, answer.text
    stock.ids["measured"] = str(answer.json()["id"])
    assert stock.end("first")["state"] == "succeeded"
    assert stock.end("measured")["state"] == "succeeded"
    return stock


@pytest.mark.parametrize("path", ["/jobs/{measured}", "/jobs/{measured}/report"])
def test_a_measured_job_leads_with_its_speed_and_stays_readable(
    measured: Stock, open_at: Opener, path: str
) -> None:
    it = open_at(measured.url, path.format(**measured.ids))
    cards = it.page.locator(".metrics .metric")
    expect(cards.first).to_contain_text(re.compile(r"Speed\s*\d+\.\d\dx onnxruntime's speed"))
    expect(cards.first).to_contain_text("same answer (largest difference")
    expect(cards.last).to_contain_text("of onnxruntime's high water")
    for way, (width, scheme) in WAYS.items():
        it.page.set_viewport_size({"width": width, "height": 900})
        it.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # one of its literals
        assert it.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, way
        it.shot(f"measured-{'report' if path.endswith('report') else 'job'}-{way}")
    it.expect_clean()


def test_every_step_tells_its_operations_bytes_and_share_and_time_outside_has_a_row(
    measured: Stock, open_at: Opener
) -> None:
    page = open_at(measured.url, f"/jobs/{measured.ids['measured']}/report").page
    table = page.locator("table.operators")
    expect(table.locator("thead")).to_contain_text(re.compile(r"Operations\s*Bytes\s*Of peak"))
    expect(table.locator("tbody tr").first).to_contain_text(re.compile(r"FLOP.*B.*%", re.DOTALL))
    expect(table.locator("tr.outside")).to_contain_text("Outside of steps")
    expect(table.locator("tbody")).to_contain_text("Conv a")


def test_a_predicted_job_leads_with_memory(measured: Stock, open_at: Opener) -> None:
    page = open_at(measured.url, f"/jobs/{measured.ids['first']}").page
    expect(page.locator(".metrics .metric").first).to_contain_text("of activations")
    expect(page.locator(".metrics .metric").last).to_contain_text("a run, predicted")


def test_a_job_under_an_error_budget_tells_its_choice_and_that_samples_were_drawn(
    stock: Stock, open_at: Opener
) -> None:
    options = {"autotune": False, "timings": "predicted", "error_budget": 0.05}
    request = {"model": stock.ids["small"], "targets": ["host"], "options": options}
    stock.ids["budgeted"] = str(stock.served.http.post("/v1/jobs", json=request).json()["id"])
    assert stock.end("budgeted")["state"] == "succeeded"
    for path in ("", "/report"):
        page = open_at(stock.url, f"/jobs/{stock.ids['budgeted']}{path}").page
        expect(page.locator("main")).to_contain_text("precision: ")
        expect(page.locator("main")).to_contain_text("no samples were given")
        if not path:
            expect(page.locator("#phases li").first).to_have_class("done")


def test_lists_and_comparisons_tell_the_speed_beside_onnxruntime(measured: Stock, open_at: Opener) -> None:
    page = open_at(measured.url, "/jobs").page
    row = page.locator(f"#job-{measured.ids['measured']}")
    expect(row).to_contain_text(re.compile(r"\d+\.\d\d× onnxruntime"))
    assert "onnxruntime's speed" in (row.locator("td[title]").first.get_attribute("title") or "")
    expect(page.locator(f"#job-{measured.ids['first']}")).to_contain_text("predicted")
    page.set_viewport_size({"width": 375, "height": 900})
    speed, memory = (row.locator("td").nth(i).bounding_box() for i in (3, 4))
    assert speed
    assert memory
    assert speed["y"] + speed["height"] <= memory["y"] + 1
    pair = ",".join(measured.ids[name] for name in ("measured", "first"))
    page.goto(f"{measured.url}/compare?jobs={pair}")
    expect(page.locator("table.compare").first).to_contain_text("Beside onnxruntime")
    expect(page.locator("table.compare").first).to_contain_text("same answer")
