"""The base classes of all sections of scenario files."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

Share = Field(default=0.0, ge=0, le=1)


class ScenarioSection(BaseModel):
    """Base class of all sections. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class Sourced(ScenarioSection):
    """Base class of sections that name the source of their numbers."""

    source: str = Field(min_length=1)
    """Where the numbers of this section come from."""
