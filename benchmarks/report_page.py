"""Reports of real runs in a real browser: size, complaints, time to see them, and whether their idle seconds are true.

    python benchmarks/report_page.py --json FILE [--shots DIR] [--load N] RUN...

For every run: the page is made by `tailrace report` (wall and processor seconds), then opened in headless chromium at
1440x900 and 1280x720, light and dark. Counted from the start of navigation, `text_ms` is the first frame with text,
`first_view_ms` the first in which every chart on the screen is painted, `all_charts_ms` the first in which all charts
of the page are. `main_thread_s` is the processor time the page cost, which other programs on the machine disturb
little. The idle seconds that the table and the chart show are compared with those folded from the journal. `--load N`
keeps N processes busy meanwhile. Exit status: 0 all is well, 1 something is not, 2 there is no chromium.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from browser import Browser, Tab, find_chromium

from tailrace.observe.journal import journal_file
from tailrace.observe.time_use.timeline import Timeline

SIZES = ((1440, 900), (1280, 720))
MAX_BYTES, MAX_MS = 5_000_000, 2000

WATCH = """
(() => {
  window.seen = {};
  const pixels = new OffscreenCanvas(40, 40).getContext("2d", { willReadFrequently: true });
  const drawn = new WeakSet();
  const canvasIn = (node) => {
    if (node instanceof HTMLCanvasElement) return node;
    for (const child of [...(node.shadowRoot?.children ?? []), ...node.children]) {
      const found = canvasIn(child);
      if (found) return found;
    }
    return null;
  };
  // More colours than a blank sheet and its frame have.
  const isPainted = (canvas) => {
    pixels.clearRect(0, 0, 40, 40);
    pixels.drawImage(canvas, 0, 0, 40, 40);
    return new Set(new Uint32Array(pixels.getImageData(0, 0, 40, 40).data.buffer)).size > 8;
  };
  const isDrawn = (chart) => {
    if (drawn.has(chart)) return true;
    const canvas = canvasIn(chart.querySelector(".plot"));
    if (!canvas?.width || !isPainted(canvas)) return false;
    drawn.add(chart);
    return true;
  };
  const look = () => {
    const charts = [...document.querySelectorAll(".chart")];
    const isLoaded = document.readyState === "complete";
    const onScreen = charts.filter((chart) => chart.getBoundingClientRect().top < innerHeight);
    const hasRest = isLoaded || charts.length > onScreen.length;
    if (!seen.first && hasRest && onScreen.length && onScreen.every(isDrawn)) seen.first = performance.now();
    if (isLoaded && charts.every(isDrawn)) {
      seen.all = performance.now();
      seen.count = charts.length;
      seen.text = performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null;
    }
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})()
"""
WAIT = "new Promise((done) => { const look = () => (seen.all ? done() : setTimeout(look, 5)); look(); })"
SHOWN_IDLE = """
(() => {
  const number = (text) => Number(text.replace(/[^0-9.-]/g, ""));
  const rows = [...document.querySelectorAll("#lanes tbody tr")];
  const axes = Bokeh.documents.flatMap((each) => each.roots()).flatMap((figure) => figure.left);
  const labels = axes.flatMap((axis) => [...new Map(axis.major_label_overrides).values()]);
  const parts = labels.map((label) => label.split("\\nidle "));
  return {
    exact: Object.fromEntries(rows.map((row) => [row.dataset.lane, Number(row.dataset.idle)])),
    table: Object.fromEntries(rows.map((row) => [row.dataset.lane, number(row.querySelector("td.idle").innerText)])),
    chart: Object.fromEntries(parts.map(([lane, seconds]) => [lane, number(seconds)])),
  };
})()
"""
TOLERANCE_S = {"exact": 1e-6, "table": 0.00501, "chart": 0.0501}
"""Half of the last digit shown."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--shots", type=Path, help="keep screenshots in this folder")
    parser.add_argument("--load", type=int, default=0, help="busy processes meanwhile")
    options = parser.parse_args()
    program = find_chromium()
    if program is None:
        print("report_page: there is no chromium here (Debian: apt-get install chromium); nothing was measured")
        return 2
    with tempfile.TemporaryDirectory() as folder, busy(options.load):
        shots = options.shots or Path(folder)
        shots.mkdir(parents=True, exist_ok=True)
        runs = [measure(program, run, Path(folder), shots) for run in options.runs]
        load_average = os.getloadavg()[0]
    result = {
        "is_good": all(run["is_good"] for run in runs),
        "runs": runs,
        "busy_processes": options.load,
        "load_average": round(load_average, 1),
        "cores": len(os.sched_getaffinity(0)),
        "versions": {"tailrace": version("tailrace"), "browser": browser_version(program)},
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 0 if result["is_good"] else 1


@contextmanager
def busy(count: int) -> Iterator[None]:
    workers = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def browser_version(program: str) -> str:
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def measure(program: str, run: Path, folder: Path, shots: Path) -> dict[str, Any]:
    page = folder / f"{run.name}.html"
    make = make_page(run, page)
    views = []
    for width, height in SIZES:
        for is_dark in (False, True):
            # A browser of its own for every view: nothing is warm, as for a reader who has just opened the file.
            with Browser(program) as browser:
                tab = browser.open_tab(width=width, height=height, is_dark=is_dark)
                name = f"{run.name}-{width}x{height}-{'dark' if is_dark else 'light'}.png"
                views.append({"width": width, "height": height, "is_dark": is_dark} | view(tab, page, shots / name))
    idle = {lane.name: lane.idle_s for lane in folded(run).lanes()}
    differences = {where: apart(idle, views[0]["idle_s"][where]) for where in TOLERANCE_S}
    is_good = (
        page.stat().st_size < MAX_BYTES
        and all(not seen["complaints"] and seen["all_charts_ms"] < MAX_MS for seen in views)
        and all(differences[where] <= limit for where, limit in TOLERANCE_S.items())
    )
    return {
        "run": run.name,
        "is_good": is_good,
        "bytes": page.stat().st_size,
        **make,
        "journal_idle_s": idle,
        "largest_difference_s": differences,
        "views": views,
    }


def make_page(run: Path, page: Path) -> dict[str, float]:
    """What the command costs, the start of Python included."""
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "tailrace", "report", str(run), "--output", str(page)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"make_wall_s": round(time.monotonic() - start, 2), "make_cpu_s": round(cpu_s, 2)}


def view(tab: Tab, page: Path, shot: Path) -> dict[str, Any]:
    tab.call("Performance.enable", timeDomain="threadTicks")
    tab.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
    tab.open(page)
    tab.evaluate(WAIT)
    seen = tab.evaluate("seen")
    metrics = {item["name"]: item["value"] for item in tab.call("Performance.getMetrics")["metrics"]}
    idle = tab.evaluate(SHOWN_IDLE)
    tab.screenshot(shot)
    return {
        "text_ms": None if seen["text"] is None else round(seen["text"]),
        "first_view_ms": round(seen["first"]),
        "all_charts_ms": round(seen["all"]),
        "main_thread_s": round(metrics["TaskDuration"], 3),
        "num_charts": seen["count"],
        "complaints": tab.complaints(),
        "idle_s": idle,
    }


def folded(run: Path) -> Timeline:
    timeline = Timeline()
    for _, entry in journal_file.read(run / "journal.jsonl"):
        timeline.feed(entry)
    return timeline


def apart(expected: dict[str, float], shown: dict[str, float]) -> float:
    """The largest difference; infinite where a lane is missing or too many."""
    if expected.keys() != shown.keys():
        return float("inf")
    return max(abs(expected[lane] - shown[lane]) for lane in expected)


if __name__ == "__main__":
    sys.exit(main())
