"""The strategies by name: one line for each. Only this file knows every strategy.

A line gives the name that settings and journals use, and the function that builds the policy. A name must not change:
journals and scenarios keep it. An unknown name raises ``ValueError``, and so does a strategy that cannot work with the
rest of the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, unique
from typing import Self

from tailrace.core.fleet.parallelism import ParallelismPolicy
from tailrace.core.fleet.policy import MigrationPolicy, Policies, RoutingPolicy, SynchronizationPolicy
from tailrace.core.fleet.scaling import ScalingPolicy
from tailrace.core.rewards.policy import TimeoutPolicy
from tailrace.core.schedule import Schedule
from tailrace.policies.migration.never import Never
from tailrace.policies.migration.rebalance import Rebalance
from tailrace.policies.parallelism.fixed import FixedSize
from tailrace.policies.parallelism.forecast import SizeByForecast
from tailrace.policies.parallelism.preemptions import SizeByPreemptions
from tailrace.policies.routing.fixed import Fixed
from tailrace.policies.routing.least_loaded import LeastLoaded
from tailrace.policies.routing.waterfall import Waterfall
from tailrace.policies.scaling.at_share import LentAtShare
from tailrace.policies.scaling.kv_peak import LentAtKvPeak
from tailrace.policies.scaling.never import NeverLent
from tailrace.policies.synchronization.as_published import AsPublished
from tailrace.policies.synchronization.when_useful import WhenUseful
from tailrace.policies.timeouts.adaptive import AdaptiveTimeouts
from tailrace.policies.timeouts.fixed import FixedTimeouts


class Strategy(Enum):
    """Base of the tables. The value of a member is its name in settings and journals."""

    make: object
    """Builds the policy."""

    def __new__(cls, name: str, make: object) -> Self:
        member = object.__new__(cls)
        member._value_, member.make = name, make
        return member

    @classmethod
    def named(cls, name: str) -> Self:
        for member in cls:
            if member.value == name:
                return member
        known = ", ".join(member.value for member in cls)
        raise ValueError(f"no {cls.__name__.lower()} strategy '{name}'; there are {known}")


@unique
class Routing(Strategy):
    """How the instance for a queued response is chosen."""

    make: Callable[[Schedule], RoutingPolicy]

    VANILLA = "vanilla", LeastLoaded.of
    FIXED = "fixed", Fixed.of
    THROUGHPUT = "throughput", Waterfall.of


@unique
class Synchronization(Strategy):
    """How the moment is chosen at which an instance pulls new weights. The policy may try routes out."""

    make: Callable[[Schedule, RoutingPolicy], SynchronizationPolicy]

    VANILLA = "vanilla", AsPublished.of
    THROUGHPUT = "throughput", WhenUseful.of


@unique
class Migration(Strategy):
    """How responses are chosen that move from one instance to another."""

    make: Callable[[Schedule], MigrationPolicy]

    VANILLA = "vanilla", Never.of
    THROUGHPUT = "throughput", Rebalance.of


@unique
class Timeouts(Strategy):
    """How long the test cases of a program may run."""

    make: Callable[[Schedule], TimeoutPolicy]

    FIXED = "fixed", FixedTimeouts.of
    ADAPTIVE = "adaptive", AdaptiveTimeouts.of


@unique
class Scaling(Strategy):
    """When instances are lent to training for the rest of a round."""

    make: Callable[[Schedule], ScalingPolicy]

    NEVER = "never", NeverLent.of
    FIXED = "fixed", LentAtShare.of
    KV_PEAK = "kv-peak", LentAtKvPeak.of


@unique
class ParallelSizes(Strategy):
    """Which parallel size the instances of a round have."""

    make: Callable[[Schedule], ParallelismPolicy]

    FIXED = "fixed", FixedSize.of
    PREEMPTIONS = "preemptions", SizeByPreemptions.of
    FORECAST = "forecast", SizeByForecast.of


KINDS: dict[str, type[Strategy]] = {"routing": Routing, "synchronization": Synchronization, "migration": Migration}
"""The kinds of strategies that coordinate rollout, by the name of the setting that chooses one."""


def policies_of(schedule: Schedule) -> Policies:
    """Build the policies that a schedule names."""
    chosen = schedule.coordination
    routing = Routing.named(chosen.routing).make(schedule)
    policies = Policies(
        routing=routing,
        synchronization=Synchronization.named(chosen.synchronization).make(schedule, routing),
        migration=Migration.named(chosen.migration).make(schedule),
        timeouts=Timeouts.named(schedule.case_time.strategy).make(schedule),
        scaling=Scaling.named(schedule.lending.strategy).make(schedule),
        parallelism=ParallelSizes.named(schedule.parallelism.strategy).make(schedule),
    )
    for sentence in _unsound(schedule, policies):
        raise ValueError(sentence)
    return policies


def _unsound(schedule: Schedule, policies: Policies) -> Iterator[str]:
    """Return the reasons why these policies cannot work with this schedule or with each other."""
    chosen = schedule.coordination
    planned = [f"{kind} '{getattr(chosen, kind)}'" for kind in KINDS if getattr(policies, kind).is_planned]
    if planned and (schedule.has_rounds or not schedule.is_strict):
        yield (
            f"throughput-oriented strategies ({', '.join(planned)}) move work between instances of different versions:"
            " they need 'keep' and a strict bound"
        )
    if policies.routing.needs_homes and (policies.synchronization.is_planned or policies.migration.is_planned):
        yield (
            f"{chosen.routing} routing returns responses to their instance, so no plan may move them elsewhere:"
            " it needs synchronization and migration to be vanilla"
        )
