"""An engine on another number of devices. What a device does and reads is divided; what they tell each other is added.

With n devices in place of m, for which the section of the engine gives its costs, communication included:

    k1, k2, k3   m / n of it
    k4           with ``reduce_s`` if n is above 1, without it if n is 1
    row_s        ``reduce_row_s * (spread(n) - spread(m))`` more
    prefill_s    m / n of it without ``reduce_token_s * spread(m)``, and ``reduce_token_s * spread(n)``
    kv_capacity  n / m of the cache and the weights, without the weights, and without what parked processes of other
                 sizes keep on its devices

``spread(n)`` is 2 * (n - 1) / n: each device sends that part of a sum in a ring. Nothing becomes less than 0.
"""

from __future__ import annotations

from typing import Any

from tailrace.core.costs import CostModel
from tailrace.core.schedule import Layout, Parallelism, SharedPlace
from tailrace.core.schedule.lending import places_by_order
from tailrace.core.schedule.parallelism import layouts_by_order
from tailrace.sim.engine_costs import EngineCosts
from tailrace.sim.parallel_section import ParallelSection, spread
from tailrace.sim.scenario_sections import EngineSection


def engine_at(engine: EngineSection, known: ParallelSection, size: int) -> EngineSection:
    """Return the engine on so many devices per instance, on the same devices altogether, without other sizes."""
    before = engine.devices_per_instance
    share, token_s = before / size, known.reduce_token_s
    changed: dict[str, Any] = {name: share * getattr(engine, name) for name in ("k1", "k2", "k3")}
    changed["k4"] = max(0.0, engine.k4 + known.reduce_s * ((size > 1) - (before > 1)))
    changed["row_s"] = max(0.0, engine.row_s + known.reduce_row_s * (spread(size) - spread(before)))
    computing_s = max(0.0, engine.prefill_s - token_s * spread(before))
    changed["prefill_s"] = share * computing_s + token_s * spread(size)
    if engine.prompt_s is not None:
        changed["prompt_s"] = share * engine.prompt_s
    changed["kv_capacity"] = int((engine.kv_capacity + known.weights_tokens) / share) - known.weights_tokens
    changed["start_s"] = known.start_of(size)
    changed["num_instances"] = engine.num_instances * before // size
    changed["devices_per_instance"] = size
    return engine.model_copy(update=changed | {"parallel": None})


def cost_model(costs: EngineCosts) -> CostModel:
    """Return the costs of an engine as strategies know them: without a term of its own, communication that grows with
    the running responses is part of ``k3``."""
    names = ("k1", "k2", "k4", "prefill_s")
    return CostModel(k3=costs.k3 + costs.row_s, **{name: getattr(costs, name) for name in names})


def parallelism_of(
    engine: EngineSection,
    costs: dict[int, EngineCosts],
    *,
    num_instances: int,
    num_replicas: int | None,
    max_in_flight: int,
) -> Parallelism:
    """Return the layouts of an engine whose instances have these costs, by size. ``num_replicas``: of a trainer on the
    same devices."""
    known, initial = engine.parallel, engine.devices_per_instance
    if known is None:
        return Parallelism()
    layouts = []
    for layout in layouts_by_order(num_instances * initial, known.sizes, initial):
        size, places = costs[layout.size], _places(layout, num_replicas)
        layouts.append(
            Layout(
                division=layout.division,
                first=layout.first,
                count=layout.count,
                kv_tokens=size.kv_capacity,
                max_running=size.max_running,
                max_in_flight=max_in_flight,
                costs=cost_model(size),
                is_measured=True,
                places=places,
            )
        )
    return Parallelism(
        layouts=tuple(layouts),
        initial=initial,
        parks=known.parks,
        start_s=max(known.start_s),
        wake_s=engine.pull_s + engine.wake_s,
    )


def _places(layout: Layout, num_replicas: int | None) -> tuple[SharedPlace, ...]:
    """Return what can be lent while this layout works. Its instances and the replicas share the devices by order."""
    if num_replicas is None:
        return ()
    return tuple(
        SharedPlace(instances=tuple(layout.first + number for number in place.instances), replicas=place.replicas)
        for place in places_by_order(layout.count, num_replicas)
    )
