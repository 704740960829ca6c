"""Pages for people, and their assets, all from this package."""

from fastapi import FastAPI
from starlette.routing import Route

from app.api.pages import assets, description, live, login, reports, views
from app.web import STATIC, rendering

ROUTERS = (description.router, login.router, live.router, reports.router, views.router)


def mount(app: FastAPI) -> None:
    """Serve the pages, and the description of all operations before them."""
    for router in ROUTERS:
        app.include_router(router)
    app.router.routes.append(Route("/static/{name:path}", assets.serve(STATIC), name="static"))
    description.describe(app)
    rendering.prepare()
