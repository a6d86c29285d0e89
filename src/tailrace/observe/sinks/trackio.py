"""trackio: a local dashboard (``trackio show``). A resumed run goes on under its name.

The variables trackio itself reads (``TRACKIO_DIR``, ``TRACKIO_SPACE_ID``, ...) keep their meaning.
"""

from __future__ import annotations

import trackio

from tailrace.observe.metrics.rows import Row
from tailrace.observe.sinks.sink import Experiment


class Trackio:
    def __init__(self, experiment: Experiment) -> None:
        self._run = trackio.init(
            project=experiment.project,
            name=experiment.name,
            config=dict(experiment.config),
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def write(self, row: Row) -> None:
        self._run.log({name: value for name, value in row.items() if name != "step"}, step=row["step"])

    def close(self) -> None:
        trackio.finish()
