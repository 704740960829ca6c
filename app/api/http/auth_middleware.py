"""Who may do what: ONE place that every request passes, whatever operation it is for.

An operation needs nothing of its own to be protected. Its method says which scope it takes, unless
a row below says otherwise; rows that it makes or reads belong to the caller (`app.jobs.store.auth_context`).
"""

import ipaddress
import math
import time
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from fastapi import Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.http.errors import NotReadyError, answer_to
from app.api.service import Service
from app.jobs.errors import ForbiddenError, ServiceError, TooManyError, UnauthorizedError
from app.jobs.store import keys
from app.jobs.store.auth_context import Caller, acting_for
from app.jobs.store.database import OUTAGE, Database
from app.settings import PREFIX, Settings, SettingsError
from app.web.rendering import is_page, page, path_of, root_of

_LOOKING = ("GET", "HEAD", "OPTIONS")
PUBLIC = "public"
COOKIE = "stowplan_key"  # where a browser keeps the key that was typed at /login
_MOST_FOUND = 1000  # keys that are remembered at once


@dataclass(frozen=True, slots=True)
class Rule:
    """The scope that requests below an address take; `public` ones take no key.

    What a key may do is looked up for each request, or holds for `seconds` where each millisecond
    counts: a key that was revoked is good for that much longer there.
    """

    prefix: str
    scope: str
    methods: tuple[str, ...] = ()  # all, when empty
    seconds: float = 0.0

    def covers(self, method: str, path: str) -> bool:
        """True for a request of this kind."""
        under = path == self.prefix or path.startswith(self.prefix.rstrip("/") + "/")
        return under and (not self.methods or method in self.methods)


# The first row that covers a request decides; without one, looking takes `read` and all else `submit`.
RULES = (
    Rule("/healthz", PUBLIC, _LOOKING),
    Rule("/readyz", PUBLIC, _LOOKING),
    Rule("/docs", PUBLIC, _LOOKING),
    Rule("/static", PUBLIC, _LOOKING),
    Rule("/favicon.ico", PUBLIC, _LOOKING),
    Rule("/openapi.json", PUBLIC, _LOOKING),
    Rule("/v1/problems", PUBLIC, _LOOKING),
    Rule("/login", PUBLIC),
    Rule("/logout", PUBLIC),
    Rule("/v1/keys", "admin"),
    Rule("/keys", "admin"),
    Rule("/v2/health", PUBLIC, _LOOKING),
    Rule("/v2", "read", seconds=1.0),  # an inference changes nothing
    Rule("/metrics", "read", _LOOKING),
)


_LOOK, _CHANGE = Rule("/", "read"), Rule("/", "submit")


def rule_of(method: str, path: str) -> Rule:
    """The rule that a request is under."""
    for rule in RULES:
        if rule.covers(method, path):
            return rule
    return _LOOK if method in _LOOKING else _CHANGE


def scope_of(method: str, path: str) -> str:
    """The scope that a request takes, or `public`."""
    return rule_of(method, path).scope


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """True for an address or name that only this machine can reach."""
    address = _address(host.strip("[]"))
    return host == "localhost" or (address is not None and address.is_loopback)


def check_binding(settings: Settings, database: Database) -> None:
    """Refuse to listen where others can reach the service before there is a key.

    Raises:
        SettingsError: the address is not loopback, and no key is valid.
    """
    if is_loopback(settings.host) and not settings.require_keys:
        return
    with database.read() as connection:
        if not keys.usable(connection):
            raise SettingsError(
                f"{PREFIX}HOST={settings.host}: others can reach this address, and there is no key; "
                "make one with `stowplan keys create --name admin --scope admin`"
            )


class AuthMiddleware:
    """Middleware that finds the caller of a request, and refuses what he may not do."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._always = settings.require_keys or not is_loopback(settings.host)
        # By the key that was shown and the one kept in a cookie: time of the lookup, and the caller.
        self._found: dict[tuple[str | None, str | None], tuple[float, Caller | None]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request pass on behalf of its caller, or answer with a problem."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            caller = await self._admit(request)
        except OUTAGE:
            answer = answer_to(request, NotReadyError("the database does not answer; try again"))
            await answer(scope, receive, send)
            return
        except ServiceError as error:
            asks_in = isinstance(error, UnauthorizedError) and request.method in _LOOKING and is_page(request)
            answer = ask_for_key(request) if asks_in else answer_to(request, error)
            await answer(scope, receive, send)
            return
        scope["caller"] = caller
        answering = request.app.state.service.answering
        answering[caller.key] += 1
        try:
            with acting_for(caller):
                await self._app(scope, receive, send)
        finally:
            answering[caller.key] -= 1

    async def _admit(self, request: Request) -> Caller:
        """Caller of a request, who may send it.

        Raises:
            ServiceError: he may not, or not now.
        """
        rule = rule_of(request.method, path_of(request))
        wanted = rule.scope
        if wanted == PUBLIC or _is_preflight(request):
            return Caller(scope="read", key="")
        service: Service = request.app.state.service
        shown, kept = _key_of(request.headers), request.cookies.get(COOKIE)
        caller = await self._holder(service.database, shown, kept, rule.seconds)
        if caller is not None and shown is None and request.method not in _LOOKING:
            check_same_origin(request)
        if caller is None:
            caller = self._anonymous(request)
        elif service.answering[caller.key] >= self._settings.max_requests_per_key:
            raise TooManyError(
                f"{self._settings.max_requests_per_key} requests of this key are being answered already"
            )
        if not caller.may(wanted):
            raise ForbiddenError(f"the key's scope is {caller.scope!r}, the operation takes {wanted!r}")
        return caller

    async def _holder(
        self, database: Database, shown: str | None, kept: str | None, seconds: float
    ) -> Caller | None:
        """Cached lookup of the caller of a key, at most `seconds` old."""
        now = time.monotonic()
        when, caller = self._found.get((shown, kept), (-math.inf, None))
        if now < when + seconds:
            return caller
        caller = await run_in_threadpool(self._caller, database, shown, kept)
        if seconds:
            if len(self._found) >= _MOST_FOUND:
                self._found.clear()
            self._found[shown, kept] = now, caller
        return caller

    def _caller(self, database: Database, shown: str | None, kept: str | None) -> Caller | None:
        """The caller with a key, shown or kept in a cookie; None where none is asked for and none shown.

        A cookie may be of another service on this host: browsers do not tell ports apart.
        """
        with database.read() as connection:
            row = keys.find(connection, kept or "") if shown is None else keys.find(connection, shown)
            if row is None and shown is None and not self._always and not keys.exist(connection):
                return None
        if row is None and shown is None:
            raise UnauthorizedError("send a key: `Authorization: Bearer sp_…`")
        if row is None:
            raise UnauthorizedError("the key is not valid here, or was revoked")
        if keys.is_due(row):
            with database.write() as connection:
                keys.note_use(connection, row["id"])
        limits = (self._settings.max_jobs_per_key, self._settings.max_bytes_per_key)
        return Caller(row["owner"], row["scope"], row["id"], *limits)

    def _anonymous(self, request: Request) -> Caller:
        """The caller without a key: someone on this machine, but no page from elsewhere in his browser.

        A foreign page may reach loopback by a name that it lets point there, or by a plain form.
        """
        allowed = self._settings.allowed_hosts
        host = request.url.hostname or ""
        if not (_address(host) or host == "localhost" or host in allowed):
            raise ForbiddenError(f"without keys the service answers on loopback only, not as {host!r}")
        origin = request.headers.get("origin")
        if origin is not None and request.method not in _LOOKING:
            here = urlsplit(origin).netloc == request.headers.get("host", "")
            if not here and origin not in self._settings.cors_origins:
                raise ForbiddenError(f"pages of {origin!r} may not change anything here")
        return Caller()


def check_same_origin(request: Request) -> None:
    """Refuse what a page of another origin makes a browser send: its cookies come along.

    Raises:
        ForbiddenError: the browser does not say that a page of ours sent it.
    """
    site = request.headers.get("sec-fetch-site")
    if site is None:  # browsers leave it out where the connection is not trusted
        origin = request.headers.get("origin", "")
        site = "same-origin" if origin and urlsplit(origin).netloc == request.headers.get("host") else "other"
    if site != "same-origin":
        raise ForbiddenError("only pages of this service may change anything with the key in a cookie")


def ask_for_key(request: Request) -> Response:
    """Lead a browser without a key to the page that asks for one, and back afterwards.

    A link on another site comes without the cookie, which is for the same site only: then the page
    asks again by itself, from here.
    """
    here = root_of(request) + path_of(request) + (f"?{request.url.query}" if request.url.query else "")
    if request.headers.get("sec-fetch-site") == "cross-site":
        return page(request, "again.html", here=here)
    return RedirectResponse(f"{root_of(request)}/login?{urlencode({'next': here})}", 303)


def _is_preflight(request: Request) -> bool:
    return request.method == "OPTIONS" and "access-control-request-method" in request.headers


def _key_of(headers: Headers) -> str | None:
    given = headers.get("authorization")
    if given is None:
        return None
    scheme, _, text = given.partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""
