"""Pages for people, and their assets, all from this package."""

from fastapi import FastAPI
from starlette.routing import Route

from app.api.pages import assets, description, live, login, reports, views
from app.web import STATIC, rendering


def mount(app: FastAPI) -> None:
    """Serve the pages, and the description of all operations before them."""
    for module in (description, login, live, reports, views):
        app.include_router(module.router)
    app.router.routes.append(Route("/static/{name:path}", assets.serve(STATIC), name="static"))
    description.describe(app)
    rendering.prepare()
