"""The files that pages are made of."""

import re
from pathlib import Path

import pytest

from app.jobs.store.database import migrate
from app.settings import Settings
from app.web import STATIC
from tests.api.inside import inside


def test_assets_come_whole_and_are_not_sent_twice(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path)
    migrate(settings)
    with inside(settings) as api:
        for path in STATIC.iterdir():
            first = api.http.get(f"/static/{path.name}")
            assert (first.status_code, first.content) == (200, path.read_bytes())
            assert "no-cache" in first.headers["cache-control"]
            again = api.http.get(f"/static/{path.name}", headers={"if-none-match": first.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        assert api.http.get("/static/pages.css").headers["content-type"].startswith("text/css")
        assert api.http.get("/static/page.js").headers["content-type"].startswith("text/javascript")
        assert api.http.post("/static/page.js").status_code == 405


@pytest.mark.parametrize("path", ["/", "/models", "/login"])
def test_the_style_of_a_page_needs_no_second_look(tmp_path: Path, path: str) -> None:
    settings = Settings(data=tmp_path)
    migrate(settings)
    with inside(settings) as api:
        text = api.http.get(path, headers={"accept": "text/html"}).text
        (address,) = re.findall(r'<link rel="stylesheet" href="([^"]+)"', text)
        style = api.http.get(address)
        assert style.content == (STATIC / "pages.css").read_bytes()
        assert "immutable" in style.headers["cache-control"]
        other = api.http.get(address[:-1] + ("0" if address[-1] != "0" else "1"))
        assert "immutable" not in other.headers["cache-control"], "it stands for other content"
