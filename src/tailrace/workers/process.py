"""The main module of every worker process: ``python -m tailrace.workers.process ENTRY``.

The link is there before the worker's function is imported, so a process whose controller dies meanwhile ends too.
"""

from __future__ import annotations

import sys

from tailrace.workers.entry import load_entry
from tailrace.workers.link import connect
from tailrace.workers.stop_signals import outlive_stop_signals, unblock_stop_signals


def main() -> None:
    outlive_stop_signals()
    unblock_stop_signals()
    (entry,) = sys.argv[1:]
    link = connect()
    init = link.receive()
    load_entry(entry)(link, init)


if __name__ == "__main__":
    main()
