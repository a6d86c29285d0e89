"""Does the simulator, fitted to two real runs, predict the wall time of others?

    python benchmarks/calibration.py --json FILE [--seeds 3] [--parallel 3 --cores-each 2] [--keep DIR]

A repeat is one `tailrace compare long-tail` with a seed of its own. The costs of engine, trainer, rewards, starts and
the slowdown of work that shares its cores are fitted to its ``sync`` and ``one-step`` journals, and so are the response
lengths, by prompt. Nothing of the other runs is used: their schedules are simulated in that world and compared with
what was measured. Fitted runs are predicted as well and shown apart.

Two intervals, the same on both sides:

    wall_s    the whole run: from the start of its processes over evaluation, steps and checkpoint to its end
    steps_s   from the first response given to an instance to the end of the last optimizer step

Beside them, of the real run alone: ``trainer_token_s``, the seconds that the trainer itself took per token. Where
nothing runs beside it, the schedule has no part in that: it tells how fast the machine was in this run.

It passes if the error of ``wall_s`` is at most 15 % in every repeat for every schedule that was not fitted; else the
exit status is 1.
`--keep` takes the folder of `benchmarks/schedules.py` too, and runs nothing that is there already.
"""

from __future__ import annotations

import sys
from typing import Any

from compared_runs import Comparison, compared, parse, write
from simulated_runs import Range

from tailrace.core.events import StepTrained
from tailrace.core.journal import Entry
from tailrace.observe.schedules.comparison import figures_of
from tailrace.sim import calibrate
from tailrace.sim.fitting.machine_facts import MachineFacts

FITTED = ("sync", "one-step")
PREDICTED = ("tail-batching", "active-partial", "async-cap")
MOST_ERROR = 0.15


def look_at(comparison: Comparison) -> dict[str, Any]:
    """One repeat: the fitted costs, and a row per schedule."""
    fitted = [comparison.journal(name) for name in FITTED]
    num_prompts = calibrate.schedule_of(fitted[0]).epoch_size
    machine_ = MachineFacts.of(comparison.config(FITTED[0]), num_prompts=num_prompts)
    calibration = calibrate.calibrate(fitted, machine_)
    rows = []
    for name in (*FITTED, *PREDICTED):
        real = comparison.journal(name)
        simulated, num_drawn = calibrate.simulate(fitted, calibration, calibrate.schedule_of(real))
        row = {"schedule": name, "is_fitted": name in FITTED, **_compared(real, simulated), "drawn": num_drawn}
        rows.append({**row, "trainer_token_s": _trainer_token_s(real)})
    return {"seed": comparison.seed, "stretch": calibration.stretch, "rows": rows}


def _compared(real: list[Entry], simulated: list[Entry]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, (measured, predicted) in {
        "wall_s": (figures_of(real).wall_s, figures_of(simulated).wall_s),
        "steps_s": (_steps_s(real), _steps_s(simulated)),
        "tokens_generated": (figures_of(real).tokens_generated, figures_of(simulated).tokens_generated),
    }.items():
        row[name] = {"measured": measured, "predicted": predicted, "error": predicted / measured - 1}
    return row


def _steps_s(entries: list[Entry]) -> float:
    figures = figures_of(entries)
    return figures.seconds_per_step * figures.num_steps


def _trainer_token_s(entries: list[Entry]) -> float:
    trained = [entry.event for entry in entries if isinstance(entry.event, StepTrained)]
    return sum(event.seconds for event in trained) / figures_of(entries).tokens_trained


def summary(repeats: list[dict[str, Any]]) -> dict[str, Any]:
    """Return each schedule's figures over the seeds."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for repeat in repeats:
        for row in repeat["rows"]:
            rows.setdefault(row["schedule"], []).append(row)
    schedules = {
        name: {
            "is_fitted": name in FITTED,
            "wall_s": Range.over([row["wall_s"]["measured"] for row in found]).to_dict(),
            "wall_error": Range.over([row["wall_s"]["error"] for row in found]).to_dict(),
            "steps_error": Range.over([row["steps_s"]["error"] for row in found]).to_dict(),
        }
        for name, found in rows.items()
    }
    stretch = Range.over([repeat["stretch"] for repeat in repeats]).to_dict()
    return {"seeds": [repeat["seed"] for repeat in repeats], "stretch": stretch, "schedules": schedules}


def show(repeats: list[dict[str, Any]]) -> None:
    heading = f"{'measured':>9} {'predicted':>9} {'error':>7}"
    print(f"{'seed':4} {'schedule':15} {'wall s':>9}: {heading}   {'steps s':>9}: {heading}   trainer us/token")
    for repeat in repeats:
        for row in repeat["rows"]:
            name = row["schedule"] + (" *" if row["is_fitted"] else "")
            cells = [
                f"{'':10} {found['measured']:9.1f} {found['predicted']:9.1f} {found['error']:+7.1%}"
                for found in (row["wall_s"], row["steps_s"])
            ]
            print(f"{repeat['seed']:4} {name:15} {'   '.join(cells)}   {1e6 * row['trainer_token_s']:16.1f}")
    print("* fitted to this run")


def main() -> int:
    options = parse(__doc__, seeds=3)
    with compared(options, (*FITTED, *PREDICTED)) as comparisons:
        repeats = [look_at(comparison) for comparison in comparisons]
    errors = [
        abs(row["wall_s"]["error"]) for repeat in repeats for row in repeat["rows"] if row["schedule"] in PREDICTED
    ]
    show(repeats)
    has_passed = max(errors) <= MOST_ERROR
    print(f"{'pass' if has_passed else 'FAIL'}  largest error of wall s: {max(errors):.1%} (at most {MOST_ERROR:.0%})")
    write(options, "calibration", {"has_passed": has_passed, "largest_error": max(errors), **summary(repeats)})
    return 0 if has_passed else 1


if __name__ == "__main__":
    sys.exit(main())
