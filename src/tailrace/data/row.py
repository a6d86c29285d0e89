"""One row of a data source: columns by name, as they were read."""

from __future__ import annotations

from collections.abc import Mapping

Row = Mapping[str, object]
