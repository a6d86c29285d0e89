"""The base of all sections of settings, and the mark of settings that ``--help`` shows."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict

Value = TypeVar("Value")

COMMON = "common"
Common = Annotated[Value, COMMON]
"""``--help`` shows a setting of type ``Common[...]``. Any other setting is shown by ``--help-all`` only."""


class Section(BaseModel):
    """Base of all sections: frozen, no unknown keys, documented by the strings below the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)
