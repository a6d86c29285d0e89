"""Plays programs in a process of its own, possibly as another user: one job and one answer per line, as JSON.

It needs nothing but an interpreter and the package's sources, so that any user can run it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

from tailrace.rewards.sandbox.cases import CallCase, Case, ProgramLimits, SandboxError, StdinCase
from tailrace.rewards.sandbox.sandbox import Mode, Sandbox


def play(job: dict[str, object], boxes: dict[str, Sandbox]) -> dict[str, object]:
    key = json.dumps([job["mode"], job["limits"]])
    if key not in boxes:
        for box in boxes.values():
            box.close()
        boxes.clear()
        boxes[key] = Sandbox.open(mode=Mode(str(job["mode"])), limits=ProgramLimits(**job["limits"]))
    files_before = len(os.listdir("/proc/self/fd"))
    started = time.monotonic()
    result = boxes[key].run(
        str(job["program"]),
        [_case(case) for case in job["cases"]],
        [job["limit_s"]] * len(job["cases"]),
        stop_at_first_failure=bool(job["stop"]),
    )
    return {
        "verdict": result.verdict,
        "verdicts": [case.verdict for case in result.cases],
        "seconds": [case.seconds for case in result.cases],
        "details": [case.detail for case in result.cases],
        "wall_s": time.monotonic() - started,
        "new_files": len(os.listdir("/proc/self/fd")) - files_before,
        "uid": box_uid(boxes[key]),
        "note": boxes[key].note,
    }


def box_uid(box: Sandbox) -> int:
    return os.geteuid() if box._slot is None else box._slot.uid


def _case(case: dict[str, object]) -> Case:
    return CallCase(**case) if "function" in case else StdinCase(**case)


def main() -> None:
    # A program of the host would have such a socket: nobody inside may reach it.
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{sys.argv[1]}-{os.getpid()}")
    listener.listen()
    boxes: dict[str, Sandbox] = {}
    for line in sys.stdin:
        try:
            answer = play(json.loads(line), boxes)
        except SandboxError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
