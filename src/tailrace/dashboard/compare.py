"""``compare.html``: what was compared and where, the table of figures, and one timeline per schedule under one axis."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from bokeh.embed import json_item
from markupsafe import Markup

from tailrace.config.settings import Settings
from tailrace.dashboard import charts, machine, page
from tailrace.observe.schedules.comparison import Compared, costs, lessons

_OWN = ("preset", "max_staleness")
"""Settings that differ between the compared schedules and are shown by their names."""
_VERSIONS = ("tailrace", "python", "torch", "transformers")


def write_comparison(results: Sequence[Compared], runs: Mapping[str, Settings], path: Path, *, recipe: str) -> Path:
    window = 0.0, max(result.account.now for result in results)
    drawings = {
        f"timeline-{number}": charts.timeline(result.account.timeline.lanes(), title=result.schedule, window=window)
        for number, result in enumerate(results)
    }
    first = runs[results[0].schedule]
    text = page.template("compare.html").render(
        recipe=recipe,
        facts=_facts(first, results[0].figures.num_steps),
        charts=drawings,
        costs=costs(results),
        lessons=lessons(results),
        resumed=[result.schedule for result in results if result.account.resumed_at],
        config=_common(first),
        chart_json=page.embed([json_item(chart.figure, f"plot-{name}") for name, chart in drawings.items()]),
        bokeh=Markup(page.bokeh_script()),
        css=Markup(page.asset("page.css")),
        script=Markup(page.asset("draw.js")),
    )
    path.write_text(text, encoding="utf-8")
    return path


def _facts(settings: Settings, num_steps: int) -> dict[str, str]:
    """What a reader must know to judge the figures."""
    rollout, algorithm, prompts = settings.rollout, settings.algorithm, settings.schedule.rollout_batch_size
    sources = [source.path for source in settings.data.sources] or [settings.data.train]
    versions = machine.versions()
    return {
        "model": f"{settings.model.path}, {settings.model.dtype}",
        "training prompts": ", ".join(sources),
        "optimizer steps": f"{num_steps}, each on {prompts} prompts with {rollout.n_samples_per_prompt} responses"
        f" of up to {rollout.max_response_length} tokens",
        "rollout instances": str(rollout.num_instances),
        "algorithm": f"advantages {algorithm.advantage_estimator}, loss {algorithm.loss},"
        f" learning rate {settings.trainer.learning_rate:g}",
        "evaluation": ", ".join(f"{each.name} ({each.path})" for each in settings.eval) or "none",
        "seed": str(settings.seed),
        "machine": f"{machine.describe()}; device: {settings.model.device}",
        "versions": ", ".join(f"{name} {versions[name]}" for name in _VERSIONS),
    }


def _common(settings: Settings) -> str:
    """The settings that the runs have in common."""
    return json.dumps(settings.model_dump(mode="json", exclude={"output_dir": True, "schedule": set(_OWN)}), indent=2)
