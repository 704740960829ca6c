"""A key typed once: kept in a cookie that scripts cannot read and other sites cannot send."""

from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from app.api.http import uploads
from app.api.http.auth_middleware import COOKIE, check_same_origin
from app.api.service import Service, ServiceOf
from app.jobs.store import keys
from app.web.rendering import page, root_of

_SECONDS = 7 * 24 * 3600
_MOST = 4096  # byte of the form

router = APIRouter(include_in_schema=False)


@router.get("/login")
def ask(request: Request, next: str = "") -> Response:
    """The page that asks for a key."""
    return page(request, "login.html", next=_local(next, request), refused=False)


@router.post("/login")
async def enter(request: Request, service: ServiceOf) -> Response:
    """Keep the key in a cookie, if it is one, and go on to where it was asked for."""
    check_same_origin(request)
    form = parse_qs((await uploads.read(request, _MOST)).decode("utf-8", "replace"), max_num_fields=8)
    text = form.get("key", [""])[0].strip()
    following = _local(form.get("next", [""])[0], request)
    if not await run_in_threadpool(_opens, service, text):
        return page(request, "login.html", status=403, next=following, refused=True)
    answer = RedirectResponse(following, 303)
    answer.set_cookie(COOKIE, text, _SECONDS, **_attributes(request))  # type: ignore[arg-type]  # a row of keywords
    return answer


@router.post("/logout")
def leave(request: Request) -> Response:
    """Forget the key."""
    check_same_origin(request)
    answer = RedirectResponse(f"{root_of(request)}/login", 303)
    answer.delete_cookie(COOKIE, **_attributes(request))  # type: ignore[arg-type]  # a row of keywords
    return answer


def _opens(service: Service, text: str) -> bool:
    with service.database.read() as connection:
        return keys.find(connection, text) is not None


def _attributes(request: Request) -> dict[str, object]:
    secure = request.url.scheme == "https"
    return {"path": root_of(request) or "/", "httponly": True, "samesite": "strict", "secure": secure}


def _local(address: str, request: Request) -> str:
    """The address, if it is one of ours; otherwise that of the first page."""
    first = f"{root_of(request)}/"
    strange = "\\" in address or "//" in address or not address.isprintable() or ":" in address
    return first if strange or not address.startswith(first) else address
