"""Fields that several schemas share; unknown fields of a request are refused."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

Sha256 = Annotated[
    str,
    Field(
        pattern=r"^[0-9a-f]{64}$",
        description="SHA-256 in lower-case hexadecimal digits.",
        examples=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
    ),
]
Name = Annotated[str, Field(min_length=1, max_length=255)]
_MAX_INTEGER = 2**63 - 1
Size = Annotated[int, Field(ge=1, le=_MAX_INTEGER)]
Dimension = Annotated[int, Field(ge=0, le=_MAX_INTEGER)]
Integer = Annotated[int, Field(ge=-(2**63), le=_MAX_INTEGER)]
Scalar = StrictBool | Annotated[StrictInt, Field(ge=-(2**63), le=_MAX_INTEGER)] | StrictFloat
Scope = Literal["read", "submit", "admin"]
State = Literal["queued", "waiting_for_target", "running", "succeeded", "failed", "cancelled"]
Label = Annotated[str, Field(max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$")]
Labels = Annotated[
    dict[Label, Annotated[str, Field(max_length=255, pattern=r"^[^\x00]*$")]], Field(max_length=32)
]


def _one_reason(value: object, validate: ValidatorFunctionWrapHandler) -> object:
    """One error at the place of the dimension, where a union has one for each of its types."""
    try:
        return validate(value)
    except ValidationError:
        found = repr(value)[:60]
        raise ValueError(
            f"expected a number of 0 or more, or a symbol such as 'N<=8' or 'H:64..960%32', found {found}"
        ) from None


ShapeDimension = Annotated[
    Dimension | Annotated[str, Field(min_length=1, max_length=100)], WrapValidator(_one_reason)
]


class Schema(BaseModel):
    """A body of a request or an answer."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @classmethod
    def of(cls, row: Mapping[Any, Any], **more: Any) -> Self:
        """The schema with those fields of a row that it has, and with `more`."""
        return cls(**{name: row[name] for name in cls.model_fields if name in row} | more)
