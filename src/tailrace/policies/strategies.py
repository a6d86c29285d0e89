"""Builds the policies that a schedule names. Only this file knows every strategy."""

from __future__ import annotations

import math

from tailrace.core.fleet.policy import MigrationPolicy, Policies, RoutingPolicy, SynchronizationPolicy
from tailrace.core.schedule import Coordination, Schedule, Strategy
from tailrace.policies.migration.never import Never
from tailrace.policies.migration.rebalance import Rebalance
from tailrace.policies.routing.fixed import Fixed
from tailrace.policies.routing.least_loaded import LeastLoaded
from tailrace.policies.routing.waterfall import Waterfall
from tailrace.policies.synchronization.as_published import AsPublished
from tailrace.policies.synchronization.when_useful import WhenUseful


def policies_of(schedule: Schedule) -> Policies:
    chosen = schedule.coordination
    routing = _routing(chosen, schedule.num_instances)
    return Policies(routing=routing, synchronization=_synchronization(chosen, routing), migration=_migration(chosen))


def _routing(chosen: Coordination, num_instances: int) -> RoutingPolicy:
    if chosen.routing is Strategy.VANILLA:
        return LeastLoaded()
    if chosen.routing is Strategy.FIXED:
        return Fixed()
    return Waterfall(
        kv_budget=chosen.kv_tokens or math.inf,
        max_running=chosen.max_running or math.inf,
        min_gain=chosen.min_gain if num_instances > 1 else None,
        prompt_length=chosen.prompt_length,
    )


def _synchronization(chosen: Coordination, routing: RoutingPolicy) -> SynchronizationPolicy:
    if chosen.synchronization is Strategy.VANILLA:
        return AsPublished()
    return WhenUseful(routing=routing, max_gap=chosen.max_gap)


def _migration(chosen: Coordination) -> MigrationPolicy:
    if chosen.migration is Strategy.VANILLA:
        return Never()
    return Rebalance(max_waiting=chosen.max_waiting, max_gap=chosen.max_gap)
