"""What StaleFlow's paper says is faster than what, looked for on every long-tailed distribution of the length grid.

Two baselines cap what is in flight. `async-cap` trains what is finished first and lets slow responses exceed the bound;
`async-order` trains in the order of admission and so is strict, as the paper calls the systems it compares with. Every
ordering that names a baseline is looked for with both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from grid_orderings import MOST_LOST, TIE, Ordering, ordering
from simulated_runs import grid
from staleflow_settings import Setting, Speed

Speeds = dict[tuple[Setting, str], Speed]

BOUNDS = (1, 2, 3)
CAPPED = ("async-cap", "async-order")
ABLATION = ("vanilla@3", "routing@3", "routing+synchronization@3", "staleflow@3")
REDUNDANT = ("group-redundancy@3", "batch-redundancy@3")
NEAR = 0.05


def systems(bounds: tuple[int, ...] = BOUNDS) -> list[str]:
    return ["sync", "one-step", *(f"{name}@{bound}" for bound in bounds for name in (*CAPPED, "staleflow"))]


def places(*, is_long_tailed: bool) -> list[Setting]:
    entries = grid().long_tailed if is_long_tailed else grid().not_long_tailed
    caps = grid().caps if is_long_tailed else grid().caps[:1]
    return [Setting(lengths=entry.name, cap=cap, scale=1) for entry in entries for cap in caps]


def wanted() -> Iterator[tuple[Setting, str]]:
    yield from (
        (setting, name) for setting in places(is_long_tailed=True) for name in (*systems(), *ABLATION, *REDUNDANT)
    )
    yield from ((setting, name) for setting in places(is_long_tailed=False) for name in systems((3,)))
    yield from (
        (replace(setting, is_ideal=True), f"staleflow@{b}") for setting in places(is_long_tailed=True) for b in BOUNDS
    )


def ratio(found: Speeds, setting: Setting, of: str, over: str) -> float:
    return found[setting, of].tokens_per_s / found[setting, over].tokens_per_s


def orderings(found: Speeds) -> Iterator[Ordering]:
    tailed = places(is_long_tailed=True)
    for baseline in CAPPED:
        yield _faster(found, tailed, "staleflow@{0}", f"{baseline}@{{0}}")
        yield _faster(found, tailed, f"{baseline}@{{0}}", "one-step")
        yield ordering(f"the lead over {baseline} grows with the bound", _grows_with_bound(found, tailed, baseline))
        yield ordering(f"the lead over {baseline} grows with the cap", _grows_with_cap(found, tailed, baseline))
        vanilla = [(s, ratio(found, s, "vanilla@3", f"{baseline}@3")) for s in tailed]
        yield ordering(
            f"all strategies vanilla: within {NEAR:.0%} of {baseline}",
            ((f"{s.name} {r:.2f}", abs(r - 1) <= NEAR) for s, r in vanilla),
        )
    yield _faster(found, tailed, "one-step", "sync")
    for before, after in pairwise(ABLATION):
        steps = [(s, ratio(found, s, after, before)) for s in tailed]
        yield ordering(f"{after} is faster than {before}", ((f"{s.name} {r:.3f}", r > 1) for s, r in steps))
    yield ordering("redundancy shortens responses, by batch more than by group", _shortened(found, tailed))
    strict = [(s, b, found[s, f"staleflow@{b}"]) for s in tailed for b in BOUNDS]
    yield ordering("no group above the bound", ((f"{s.name}@{b}", not v.num_above(b)) for s, b, v in strict))
    shares = [(f"{s.name}@{b}", v.share_at(b)) for s, b, v in strict]
    yield ordering("most groups at the bound", ((f"{name} {share:.0%}", share > 0.5) for name, share in shares))
    flat = [(s, n, ratio(found, s, n, "sync")) for s in places(is_long_tailed=False) for n in systems((3,))]
    yield ordering(
        f"without a long tail nothing loses more than {MOST_LOST:.0%}",
        ((f"{s.name} {n} {r:.2f}", r >= 1 - MOST_LOST) for s, n, r in flat),
    )


def out_of_reach(found: Speeds) -> list[str]:
    """Where `staleflow` would be slower than `async-cap` even on ideal instances: it is the bound that costs."""
    return [
        f"{setting.name}@{bound}"
        for setting in places(is_long_tailed=True)
        for bound in BOUNDS
        if found[replace(setting, is_ideal=True), f"staleflow@{bound}"].tokens_per_s
        < found[setting, f"async-cap@{bound}"].tokens_per_s
    ]


def _faster(found: Speeds, tailed: list[Setting], of: str, over: str) -> Ordering:
    bounds = BOUNDS if "@" in of else BOUNDS[:1]
    pairs = [(s, b, ratio(found, s, of.format(b), over.format(b))) for s in tailed for b in bounds]
    name = f"{of.split('@')[0]} is faster than {over.split('@')[0]}"
    return ordering(name, ((f"{s.name}@{b} {r:.2f}", r > 1) for s, b, r in pairs))


def _leads(found: Speeds, setting: Setting, baseline: str) -> list[float]:
    return [ratio(found, setting, f"staleflow@{b}", f"{baseline}@{b}") for b in BOUNDS]


def _grows(leads: list[float]) -> bool:
    """From each to the next, by more than nothing in all."""
    return leads[-1] > leads[0] and all(after > before * (1 - TIE) for before, after in pairwise(leads))


def _grows_with_bound(found: Speeds, tailed: list[Setting], baseline: str) -> Iterator[tuple[str, bool]]:
    for setting in tailed:
        leads = _leads(found, setting, baseline)
        yield f"{setting.name} {_arrows(leads)}", _grows(leads)


def _grows_with_cap(found: Speeds, tailed: list[Setting], baseline: str) -> Iterator[tuple[str, bool]]:
    for name in dict.fromkeys(setting.lengths for setting in tailed):
        leads = [_leads(found, setting, baseline)[-1] for setting in tailed if setting.lengths == name]
        yield f"{name} {_arrows(leads)}", _grows(leads)


def _arrows(leads: list[float]) -> str:
    return " -> ".join(f"{lead:.2f}" for lead in leads)


def _shortened(found: Speeds, tailed: list[Setting]) -> Iterator[tuple[str, bool]]:
    for setting in tailed:
        plain, group, batch = (found[setting, name].mean_length for name in ("staleflow@3", *REDUNDANT))
        yield f"{setting.name} {plain:.0f}, {group:.0f}, {batch:.0f}", batch < group < plain
