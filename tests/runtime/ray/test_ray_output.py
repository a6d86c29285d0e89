"""Output of an actor's process, taken over in a process of its own. Needs no Ray."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path


def run(directory: Path, code: str) -> list[str]:
    """Lines that were told while the code ran. The code knows `output`."""
    told = directory / "told"
    script = f"""
        import os, subprocess, sys, time
        from tailrace.runtime.ray.output import CapturedOutput

        def tell(data):
            time.sleep(slow_s)
            with open({str(told)!r}, "ab") as file:
                file.write(data)

        slow_s = 0
        output = CapturedOutput(tell)
    """
    text = textwrap.dedent(script) + textwrap.dedent(code)
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60, capture_output=True)
    return told.read_text().splitlines()


def test_the_last_line_is_told_however_slowly_lines_are_told(tmp_path: Path) -> None:
    code = """
        slow_s = 1.5
        print("first")
        print("last")
        output.close()
        os._exit(0)
    """
    assert run(tmp_path, code) == ["first", "last"]


def test_a_child_that_holds_the_output_does_not_delay_the_end(tmp_path: Path) -> None:
    code = """
        child = subprocess.Popen(["sleep", "1000"])
        print("last", end="")
        output.close()
        child.kill()
        os._exit(0)
    """
    assert run(tmp_path, code) == ["last"]


def test_a_line_that_ends_with_zeros_is_told_as_it_is(tmp_path: Path) -> None:
    code = """
        os.write(1, b"zeros" + bytes(40))
        output.close()
        os._exit(0)
    """
    assert run(tmp_path, code) == ["zeros" + "\0" * 40]
