"""From the numbers of a schedule to the policies that read them. The one place that knows every strategy by name."""

from __future__ import annotations

import math

from tailrace.core.coordination import Coordination, Strategy
from tailrace.core.policy import MigrationPolicy, Policies, RoutingPolicy, SynchronizationPolicy
from tailrace.core.schedule import Schedule
from tailrace.policies.cost_model import CostModel
from tailrace.policies.migration.never import Never
from tailrace.policies.migration.rebalance import Rebalance
from tailrace.policies.routing.least_loaded import LeastLoaded
from tailrace.policies.routing.waterfall import Waterfall
from tailrace.policies.synchronization.as_published import AsPublished
from tailrace.policies.synchronization.when_useful import WhenUseful


def policies_of(schedule: Schedule) -> Policies:
    chosen = schedule.coordination
    costs = CostModel(k1=chosen.k1, k2=chosen.k2, k3=chosen.k3, k4=chosen.k4, k5=chosen.k5)
    routing = _routing(chosen, costs)
    return Policies(
        routing=routing,
        synchronization=_synchronization(chosen, costs, routing),
        migration=_migration(chosen, costs),
    )


def _routing(chosen: Coordination, costs: CostModel) -> RoutingPolicy:
    if chosen.routing is Strategy.VANILLA:
        return LeastLoaded()
    return Waterfall(
        costs=costs,
        kv_budget=chosen.kv_tokens or math.inf,
        max_running=chosen.max_running or math.inf,
        min_gain=chosen.min_gain,
        prompt_length=chosen.prompt_length,
    )


def _synchronization(chosen: Coordination, costs: CostModel, routing: RoutingPolicy) -> SynchronizationPolicy:
    if chosen.synchronization is Strategy.VANILLA:
        return AsPublished()
    return WhenUseful(routing=routing, costs=costs)


def _migration(chosen: Coordination, costs: CostModel) -> MigrationPolicy:
    if chosen.migration is Strategy.VANILLA:
        return Never()
    return Rebalance(costs=costs, max_waiting=chosen.max_waiting, max_gap=chosen.max_gap)
