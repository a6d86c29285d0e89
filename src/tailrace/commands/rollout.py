"""The ``rollout`` command: generate and score without training, and write the lengths of the responses."""

from __future__ import annotations

from functools import partial

from tailrace.commands.train import RunResult, Say, carry_out, say_at_once
from tailrace.config.rollout_settings import SamplingSettings
from tailrace.config.settings import Settings
from tailrace.observe.display.rollout_tally import RolloutTally
from tailrace.observe.journal import journal_file
from tailrace.observe.metrics.rows import Row
from tailrace.observe.prompts import length_trace
from tailrace.observe.prompts.fates import Fates
from tailrace.observe.prompts.length_trace import LengthTrace
from tailrace.runtime.inputs.sources import Sources
from tailrace.runtime.record.run_directory import RunDirectory


def rollout(settings: Settings, say: Say = say_at_once) -> RunResult:
    """Run to the end, or continue the run in ``output_dir``; ``SettingsError`` if it cannot start."""
    cap = settings.rollout.max_response_length
    return carry_out(
        settings, say, closing_lines=partial(_closing_lines, cap=cap), conclude=partial(_write_lengths, settings)
    )


def _write_lengths(settings: Settings, directory: RunDirectory, sources: Sources) -> Row:
    fates, tally = Fates(), RolloutTally()
    for _, entry in journal_file.read(directory.journal):
        fates.feed(entry)
        tally.feed(entry)
    trace = LengthTrace(
        model=settings.model.path,
        cap=settings.rollout.max_response_length,
        group_size=settings.rollout.n_samples_per_prompt,
        sampling=settings.rollout.model_dump(mode="json", include=set(SamplingSettings.model_fields)),
        prompts=length_trace.of_fates(fates, sources.prompt_length),
    )
    length_trace.write(directory.lengths, trace)
    return tally.row()


def _closing_lines(result: RunResult, *, cap: int) -> list[str]:
    metrics = result.metrics
    names = ("p50", "p90", "p95", "p99", "max")
    lengths = "/".join(str(metrics[f"response_length/{name}"]) for name in names)
    passed = [f"; {name.rpartition('/')[2]} {value:.3f}" for name, value in metrics.items() if "/pass@" in name]
    return [
        f"done: {result.reason}; reward {metrics['reward/mean']:.3f}" + "".join(passed),
        f"length {'/'.join(names)} {lengths}, {metrics['response_length/clip_ratio']:.1%} cut off at {cap} tokens",
        f"{metrics['perf/tokens_total']:,} tokens in {metrics['timing_s/gen']:.1f} s,"
        f" {metrics['perf/tokens_per_s']:,.0f} tok/s",
        f"lengths:    {result.directory / 'lengths.json'}",
        f"metrics:    {result.directory / 'metrics.jsonl'}",
    ]
