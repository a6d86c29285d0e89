"""What StaleFlow's paper says is faster than what, counted on every long-tailed distribution of the length grid.

Three references, each at the same bound as `staleflow`:

* `vanilla`: StaleFlow's own bound, strict, with every strategy vanilla. Section 6.5 of the paper equates this with its
  asynchronous baseline.
* `async-order`: strict. What is in flight is counted, responses stay on their instance, and prompts are trained in the
  order in which they began.
* `async-cap`: not strict. What is in flight is counted, responses stay on their instance, and whatever is complete is
  trained: slow responses exceed the bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from grid_orderings import MOST_LOST, TIE, Ordering, ordering
from simulated_runs import Range, grid
from staleflow_settings import Setting, Speeds

Found = dict[tuple[Setting, str], Speeds]

BOUNDS = (1, 2, 3)
REFERENCES = ("vanilla", "async-order", "async-cap")
ABLATION = ("vanilla@3", "routing@3", "routing+synchronization@3", "staleflow@3")
REDUNDANT = ("group-redundancy@3", "batch-redundancy@3")
NEAR = 0.05


def systems(bounds: tuple[int, ...] = BOUNDS) -> list[str]:
    return ["sync", "one-step", *(f"{name}@{bound}" for bound in bounds for name in (*REFERENCES, "staleflow"))]


def places(*, is_long_tailed: bool) -> list[Setting]:
    entries = grid().long_tailed if is_long_tailed else grid().not_long_tailed
    caps = grid().caps if is_long_tailed else grid().caps[:1]
    return [Setting(lengths=entry.name, cap=cap, scale=1) for entry in entries for cap in caps]


def wanted() -> Iterator[tuple[Setting, str]]:
    yield from ((setting, name) for setting in places(is_long_tailed=True) for name in (*systems(), *ABLATION))
    yield from ((setting, name) for setting in places(is_long_tailed=False) for name in systems((3,)))


def ratios(found: Found, setting: Setting, of: str, over: str) -> list[float]:
    """Seed by seed: the same lengths under both schedules."""
    pairs = zip(found[setting, of].speeds, found[setting, over].speeds, strict=True)
    return [speed.tokens_per_s / other.tokens_per_s for speed, other in pairs]


def ratio(found: Found, setting: Setting, of: str, over: str) -> float:
    return Range.over(ratios(found, setting, of, over)).mean


def over_grid(found: Found) -> list[dict[str, Any]]:
    """The lead of `staleflow` over each reference, one figure per cell and bound."""
    rows = []
    for reference in REFERENCES:
        leads = [lead for setting in places(is_long_tailed=True) for lead in _leads(found, setting, reference)]
        held = sum(lead > 1 for lead in leads)
        rows.append({"over": reference, "lead": Range.over(leads).to_dict(), "faster": held, "of": len(leads)})
    return rows


def drift_over_grid(found: Found) -> dict[str, Any]:
    """How steady `async-cap` is in its window, cell by cell: speed in the second half over that in the first."""
    names = [f"async-cap@{bound}" for bound in BOUNDS]
    drifts = {(s, n): found[s, n].drift for s in places(is_long_tailed=True) for n in names}
    off = [f"{s.name}@{n.rpartition('@')[2]} {drift:.2f}" for (s, n), drift in drifts.items() if abs(drift - 1) > NEAR]
    held = len(drifts) - len(off)
    return {"drift": Range.over(list(drifts.values())).to_dict(), "near_1": held, "of": len(drifts), "not_in": off}


def orderings(found: Found) -> Iterator[Ordering]:
    tailed = places(is_long_tailed=True)
    for baseline in REFERENCES:
        yield _faster(found, tailed, "staleflow@{0}", f"{baseline}@{{0}}")
        yield _faster(found, tailed, f"{baseline}@{{0}}", "one-step")
        yield ordering(f"the lead over {baseline} grows with the bound", _grows_with_bound(found, tailed, baseline))
        yield ordering(f"the lead over {baseline} grows with the cap", _grows_with_cap(found, tailed, baseline))
        if baseline == "vanilla":
            continue
        vanilla = [(s, ratio(found, s, "vanilla@3", f"{baseline}@3")) for s in tailed]
        yield ordering(
            f"vanilla is within {NEAR:.0%} of {baseline}",
            ((f"{s.name} {r:.2f}", abs(r - 1) <= NEAR) for s, r in vanilla),
        )
    yield _faster(found, tailed, "one-step", "sync")
    for before, after in pairwise(ABLATION):
        steps = [(s, ratio(found, s, after, before)) for s in tailed]
        yield ordering(f"{after} is faster than {before}", ((f"{s.name} {r:.3f}", r > 1) for s, r in steps))
    strict = [(s, b, found[s, f"staleflow@{b}"]) for s in tailed for b in BOUNDS]
    yield ordering("no group above the bound", ((f"{s.name}@{b}", not v.num_above(b)) for s, b, v in strict))
    shares = [(f"{s.name}@{b}", v.share_at(b)) for s, b, v in strict]
    yield ordering("most groups at the bound", ((f"{name} {share:.0%}", share > 0.5) for name, share in shares))
    flat = [(s, n, ratio(found, s, n, "sync")) for s in places(is_long_tailed=False) for n in systems((3,))]
    yield ordering(
        f"without a long tail nothing loses more than {MOST_LOST:.0%}",
        ((f"{s.name} {n} {r:.2f}", r >= 1 - MOST_LOST) for s, n, r in flat),
    )


def _faster(found: Found, tailed: list[Setting], of: str, over: str) -> Ordering:
    bounds = BOUNDS if "@" in of else BOUNDS[:1]
    pairs = [(s, b, ratio(found, s, of.format(b), over.format(b))) for s in tailed for b in bounds]
    name = f"{of.split('@')[0]} is faster than {over.split('@')[0]}"
    return ordering(name, ((f"{s.name}@{b} {r:.2f}", r > 1) for s, b, r in pairs))


def _leads(found: Found, setting: Setting, baseline: str) -> list[float]:
    return [ratio(found, setting, f"staleflow@{b}", f"{baseline}@{b}") for b in BOUNDS]


def _grows(leads: list[float]) -> bool:
    """From each to the next, by more than nothing in all."""
    return leads[-1] > leads[0] and all(after > before * (1 - TIE) for before, after in pairwise(leads))


def _grows_with_bound(found: Found, tailed: list[Setting], baseline: str) -> Iterator[tuple[str, bool]]:
    for setting in tailed:
        leads = _leads(found, setting, baseline)
        yield f"{setting.name} {_arrows(leads)}", _grows(leads)


def _grows_with_cap(found: Found, tailed: list[Setting], baseline: str) -> Iterator[tuple[str, bool]]:
    for name in dict.fromkeys(setting.lengths for setting in tailed):
        leads = [_leads(found, setting, baseline)[-1] for setting in tailed if setting.lengths == name]
        yield f"{name} {_arrows(leads)}", _grows(leads)


def _arrows(leads: list[float]) -> str:
    return " -> ".join(f"{lead:.2f}" for lead in leads)
