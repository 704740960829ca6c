"""Keys, for administrators: made, listed, revoked."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.api.http import errors
from app.api.schemas.keys import KeyAnswer, KeyList, KeyRequest, NewKeyAnswer
from app.api.service import ServiceOf
from app.jobs.errors import KeyNotFoundError, RequestError
from app.jobs.store import keys

router = APIRouter(prefix="/v1/keys", tags=["keys"])


@router.post("", summary="Make a key", status_code=201, responses=errors.responses(RequestError))
def create_key(body: KeyRequest, response: Response, service: ServiceOf) -> NewKeyAnswer:
    """Make a key. Its text is in this answer only. From the first key on, every request needs one.

    The first key is of scope `admin`, and is made only with `require_keys`.
    """
    with service.database.write() as connection:
        if not body.require_keys and not keys.exist(connection):
            raise RequestError(
                "require_keys: expected true for the first key, as every request needs a key from then on; "
                "make it with `stowplan keys create --name admin --scope admin` or on the page /keys",
                pointer="/require_keys",
            )
        identifier, text = keys.create(connection, body.name, body.scope, body.owner)
        row = next(k for k in keys.listed(connection) if k["id"] == identifier)
    response.headers["cache-control"] = "no-store"
    return NewKeyAnswer(**row, key=text)


@router.get("", summary="List keys")
def list_keys(service: ServiceOf) -> KeyList:
    """All keys, oldest first, without their texts."""
    with service.database.read() as connection:
        return KeyList(keys=[KeyAnswer(**row) for row in keys.listed(connection)])


@router.delete(
    "/{key_id}", summary="Revoke a key", status_code=204, responses=errors.responses(KeyNotFoundError)
)
def revoke_key(
    key_id: Annotated[str, Path(max_length=64, examples=["0c5b9a2e4c3791aa"])], service: ServiceOf
) -> None:
    """Make a key worthless at once. Models and jobs made with it stay."""
    with service.database.write() as connection:
        keys.revoke(connection, key_id)
