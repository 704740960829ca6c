"""Files that pages are made of, from memory: a page cannot be painted before its style has come."""

import mimetypes
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request, Response
from starlette.exceptions import HTTPException

from app.web.rendering import hash_of

_CHECKED = "private, no-cache"  # asked for again, and then mostly not sent
_FOR_EVER = "private, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    content: bytes
    media_type: str
    hash: str

    @classmethod
    def read(cls, path: Path) -> "Asset":
        """A file of the package."""
        content = path.read_bytes()
        kind = mimetypes.guess_type(path.name)[0] or "text/plain"
        return cls(content, kind, hash_of(content))


def serve(folder: Path) -> Callable[[Request], Awaitable[Response]]:
    """Handler that answers for the files of a folder, as they are now.

    An address with the file's hash, `?v=…`, stands for this content and needs no second look.
    """
    assets = {path.name: Asset.read(path) for path in sorted(folder.iterdir()) if path.is_file()}

    async def answer(request: Request) -> Response:
        asset = assets.get(request.path_params["name"])
        if asset is None:
            raise HTTPException(404)
        lasting = request.query_params.get("v") == asset.hash
        tag = f'"{asset.hash}"'
        headers = {"etag": tag, "cache-control": _FOR_EVER if lasting else _CHECKED}
        known = request.headers.get("if-none-match", "").split(", ")
        if tag in known or f"W/{tag}" in known:
            return Response(status_code=304, headers=headers)
        return Response(asset.content, headers=headers, media_type=asset.media_type)

    return answer
