"""The base of all sections of settings, the mark of settings that ``--help`` shows, and types that sections share."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt

Value = TypeVar("Value")

COMMON = "common"
Common = Annotated[Value, COMMON]
"""``--help`` shows a setting of type ``Common[...]``. Any other setting is shown by ``--help-all`` only."""

Seconds = Annotated[float, Field(gt=0, le=1e6)]
"""A time limit. Without a bound, a wait for it would never end, or the system would refuse the number."""


def as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def as_numbers(value: object) -> object:
    """A list for one number, or for several in a text such as `1,2,4`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    parts = value.split(",") if isinstance(value, str) else []
    return tuple(map(int, parts)) if parts and all(part.strip().isdecimal() for part in parts) else value


Numbers = Annotated[tuple[PositiveInt, ...], BeforeValidator(as_numbers)]
"""Numbers above 0: a list, or a text with commas between them."""
Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]
"""One name, or a list of them."""


class Section(BaseModel):
    """Base of all sections: frozen, no unknown keys, documented by the strings below the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)
