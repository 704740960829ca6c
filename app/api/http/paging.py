"""Lists in pages: an opaque cursor, a link to the next page, and filters that all lists have."""

import base64
import binascii
from typing import Annotated

from fastapi import Query, Request, Response

from app.api.service import Service
from app.jobs.errors import RequestError

LabelQuery = Annotated[
    list[Annotated[str, Query(max_length=320)]] | None,
    Query(
        max_length=32, description="`name` or `name=value`; given again, all of them.", examples=[["team=a"]]
    ),
]
Limit = Annotated[int, Query(ge=1, le=200)]
Cursor = Annotated[str | None, Query(max_length=200, description="`next` of the page before.")]
TextQuery = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=255,
        description="Text that the model's name or the value of a label contains.",
    ),
]


def encode_cursor(place: str) -> str:
    """The cursor of the page after a place."""
    return base64.urlsafe_b64encode(place.encode()).decode()


def decode_cursor(cursor: str) -> str:
    """The place that a cursor stands for.

    Raises:
        RequestError: no page gave that cursor.
    """
    try:
        return base64.b64decode(cursor, altchars=b"-_", validate=True).decode("ascii").replace("\0", "")
    except (binascii.Error, ValueError) as error:
        raise RequestError("cursor: expected `next` of a page", pointer="query:cursor") from error


def link_next(response: Response, service: Service, path: str, request: Request, cursor: str | None) -> None:
    """Tell where the next page is, with the same filters."""
    if cursor is not None:
        query = request.url.include_query_params(cursor=cursor).query
        response.headers["link"] = f'<{service.address(path)}?{query}>; rel="next"'
