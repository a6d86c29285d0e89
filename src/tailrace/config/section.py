"""The base of all sections of settings, the mark of settings that ``--help`` shows, and types that sections share."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Value = TypeVar("Value")

COMMON = "common"
Common = Annotated[Value, COMMON]
"""``--help`` shows a setting of type ``Common[...]``. Any other setting is shown by ``--help-all`` only."""

Seconds = Annotated[float, Field(gt=0, le=1e6)]
"""A time limit. Without a bound, a wait for it would never end, or the system would refuse the number."""


def as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]
"""One name, or a list of them."""


class Section(BaseModel):
    """Base of all sections: frozen, no unknown keys, documented by the strings below the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)
