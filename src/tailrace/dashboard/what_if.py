"""The section "What if" of the report: what was predicted for other schedules, from `advice.json`."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.observe.schedules import advice as advice_file
from tailrace.observe.schedules.advice import Advice


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    basis: str
    sentences: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The headings, then a row for each schedule."""
    settings: tuple[tuple[str, str], ...]
    """Each schedule, and the settings of the command line that choose it."""
    excluded: tuple[tuple[str, str], ...]


def what_if(advice: Advice | None) -> WhatIf | None:
    """Return what the page says; None if there is no advice."""
    if advice is None:
        return None
    return WhatIf(
        basis=advice_file.basis(advice),
        sentences=advice.sentences,
        rows=tuple(tuple(row) for row in advice_file.cells(advice)),
        settings=tuple((row.name, row.settings) for row in advice.rows[1:]),
        excluded=advice.excluded,
    )
