"""Pages out of templates: what all of them know, and the headers that they carry."""

import functools
import hashlib
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import jinja2
from fastapi import Request
from fastapi.responses import HTMLResponse

from app.engine.report import units
from app.web import STATIC, TEMPLATES

# No script, style or image but our own files; nothing may frame a page or send a form elsewhere.
POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_SEGMENTS = re.compile(r"[^_./-]*[_./-]+|[^_./-]+")
# Addresses that programs ask for: they get problems in JSON, whatever they accept.
MACHINES = ("/v1", "/v2", "/static", "/healthz", "/readyz", "/metrics", "/openapi.json")


def is_page(request: Request) -> bool:
    """True for a browser's request for a page."""
    path = path_of(request)
    return "text/html" in request.headers.get("accept", "") and not any(
        path == prefix or path.startswith(prefix + "/") for prefix in MACHINES
    )


def path_of(request: Request) -> str:
    """The path below the prefix that a proxy takes off."""
    path, root = str(request.scope["path"]), root_of(request)
    return path.removeprefix(root) if root and path.startswith(root + "/") else path


def root_of(request: Request) -> str:
    """The prefix of all addresses."""
    return str(request.scope.get("root_path", ""))


def page(
    request: Request,
    template: str,
    *,
    status: int = 200,
    **given: Any,
) -> HTMLResponse:
    """A page for whoever asks."""
    text = fragment(request, template, **given)
    policy = {"content-security-policy": POLICY, "cache-control": "private, no-store"}
    policy["referrer-policy"] = "same-origin"  # otherwise browsers hide where a form comes from
    return HTMLResponse(text, status, headers=policy)


def fragment(request: Request, template: str, **given: Any) -> str:
    """A part of a page."""
    return _environment().get_template(template).render(**_common(request), **given)


def error_page(request: Request, problem: Mapping[str, Any]) -> HTMLResponse:
    """A problem for people."""
    return page(request, "error.html", status=int(problem["status"]), problem=problem)


def prepare() -> None:
    """Read all templates now, so that nobody waits for them."""
    for name in _environment().list_templates():
        _environment().get_template(name)


def option(value: object) -> str:
    """The value of an option for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _common(request: Request) -> dict[str, Any]:
    caller = request.scope.get("caller")
    return {
        "root": root_of(request),
        "path": path_of(request),
        "query": request.url.query,
        "key": caller.key if caller else "",
        "may_submit": bool(caller and caller.may("submit")),
        "may_admin": bool(caller and caller.may("admin")),
        "scope": caller.scope if caller else "",
        "now": time.time(),
    }


def hash_of(content: bytes) -> str:
    """Hash of an asset's content, for addresses and tags."""
    return hashlib.sha256(content).hexdigest()[:16]


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        **units.FILTERS,
        "segments": segments,
        "ago": ago,
        "iso": iso,
        "number": number,
        "percent": percent,
        "option": option,
    }
    environment.globals["style"] = hash_of((STATIC / "pages.css").read_bytes())
    environment.globals["version"] = version("stowplan")
    environment.tests["finite"] = lambda value: isinstance(value, int | float) and value == value
    return environment


def segments(text: str) -> list[str]:
    """Parts of a name between which it may break: each ends with a separator."""
    return _SEGMENTS.findall(text)


def ago(seconds: float | None) -> str:
    """How long a moment is past, roughly."""
    if seconds is None:
        return "never"
    past = max(time.time() - seconds, 0.0)
    for name, unit in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if past >= unit:
            return f"{past / unit:.0f}{units.NBSP}{name} ago"
    return "just now" if past < 5 else f"{past:.0f}{units.NBSP}s ago"


def iso(seconds: float) -> str:
    """A moment as ISO 8601 has it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def number(count: float) -> str:
    """A count with its thousands apart."""
    return f"{count:,}".replace(",", units.NBSP)


def percent(share: float, digits: int = 0) -> str:
    """A share of one as percent."""
    return f"{share * 100:.{digits}f}{units.NBSP}%"
