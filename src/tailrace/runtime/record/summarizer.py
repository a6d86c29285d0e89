"""Starts the process that keeps a run's summary up to date (``observe/summaries.py``): at most one at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


class Summarizer:
    """Owns the process. It has the lowest priority, and nothing waits for it."""

    def __init__(self, run: Path, log: Path) -> None:
        self._run, self._log = run, log
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start a process that updates the summary, unless one is still running."""
        if self._process is not None and self._process.poll() is None:
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tailrace.observe.summaries", str(self._run)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )

    def end(self) -> None:
        """Kill the process. An unfinished summary is not needed, because the journal has the same data."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
