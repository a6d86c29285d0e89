"""The section "What if" shows the advice that lies in the run directory."""

from __future__ import annotations

from pathlib import Path

from dashboard.test_report import finished, page_of
from observe.runs import write_journal
from tailrace.observe.schedules import advice as advice_file
from tailrace.observe.schedules.advice import Advice, PredictedSchedule, SpeedVerdict


def row(preset: str, step_s: float, verdict: SpeedVerdict) -> PredictedSchedule:
    return PredictedSchedule(
        name=preset,
        preset=preset,
        settings=f"--schedule.preset {preset}",
        bound="0",
        step_s=step_s,
        least_s=0.9 * step_s,
        most_s=1.1 * step_s,
        tokens=1234.0,
        drawn_share=0.25,
        verdict=verdict,
    )


ADVICE = Advice(
    num_recorded=9,
    num_steps=5,
    num_draws=3,
    recorded_s=2.1,
    error=0.06,
    stretch=0.94,
    margin=0.06,
    rows=(row("sync", 2.0, SpeedVerdict.THIS_RUN), row("tail-batching", 1.0, SpeedVerdict.FASTER)),
    excluded=(("one-step", "colocated <rollout> and training take turns"),),
    sentences=("Use tail-batching: 1.00 s per step are predicted",),
)


def test_the_page_shows_the_advice_that_was_asked_for(tmp_path: Path) -> None:
    run = write_journal(tmp_path / "run", finished().entries)
    advice_file.write(ADVICE, run / advice_file.FILE)
    page = page_of(run)
    assert "what-if" in page.ids
    recorded = "This run (sync), first 5 of 9 steps: 2.10 s per step recorded, 2.00 s predicted (-4.8%)."
    assert (
        f"{recorded} Calibration had to correct the fitted costs by -6.0%."
        " A difference below 6.0% counts as none. Use tail-batching: 1.00 s per step are predicted" in page.words
    )
    assert "tail-batching 1.00 0.846 to 1.17 2.00x faster 1,234 0.81 0 25%" in page.words
    assert "--schedule.preset tail-batching" in page.words
    assert "colocated <rollout> and training take turns" in page.words


def test_without_advice_the_page_says_how_to_get_it(tmp_path: Path) -> None:
    run = write_journal(tmp_path / "run", finished().entries)
    assert "tailrace advise with the run directory predicts it" in page_of(run).words
    (run / advice_file.FILE).write_text("damaged")
    assert "tailrace advise with the run directory predicts it" in page_of(run).words
