"""Keys of the service."""

from pydantic import ConfigDict, Field

from app.api.schemas.fields import Name, Schema, Scope


class KeyRequest(Schema):
    """A key to be made."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "ci", "scope": "submit"}]})

    name: Name = Field(description="What it is for, for people.")
    scope: Scope
    owner: Name | None = Field(
        default=None,
        description="Whom models and jobs belong to that are made with it: the key itself unless given.",
    )
    require_keys: bool = Field(
        default=False,
        description="Needed for the first key: everybody without a key is locked out from then on.",
    )


class KeyAnswer(Schema):
    """A key, without its text."""

    id: str
    name: str
    owner: str
    scope: Scope
    created: float = Field(description="Seconds since the epoch.")
    used: float | None = Field(description="When it was last seen, to the minute.")
    revoked: float | None


class NewKeyAnswer(KeyAnswer):
    """A key that was just made."""

    key: str = Field(description="What to send as `Authorization: Bearer …`; it is told this once.")


class KeyList(Schema):
    """All keys, oldest first."""

    keys: list[KeyAnswer]
