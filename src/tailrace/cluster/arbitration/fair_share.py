"""Start-time fair queueing: tenants get time in proportion to their weights.

Each node group shares its time out like this, and admission shares out the device time of the cluster.

Each tenant has a *tag*, the virtual time at which its next turn begins. A turn of s seconds moves the tag by
s / weight, and the tenant with the smallest tag is next. Tenants that always have a request waiting thus get time in
proportion to their weights. The virtual time of the system is the tag at which the latest turn began. A tenant that was
idle begins at this time if its own tag is older: it gets no credit for the time in which it asked for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate

from tailrace.cluster.ids import TenantId


class FairShare:
    def __init__(self, weights: Mapping[TenantId, float]) -> None:
        """``weights``: tenants that it does not name have weight 1."""
        for tenant, weight in weights.items():
            if not weight > 0:
                raise ValueError(f"the weight of a tenant must be above 0, got {weight} for {tenant}")
        self._weights = dict(weights)
        self._tags: dict[TenantId, float] = {}
        self._virtual_time = 0.0

    def enter(self, tenant: TenantId) -> None:
        """A tenant that had neither a turn nor a request asks for one."""
        self._tags[tenant] = max(self._tag(tenant), self._virtual_time)

    def pick(self, waiting: Iterable[TenantId]) -> TenantId:
        """Return the tenant whose turn is next; of several with equal tags, the first in ``waiting``."""
        return min(waiting, key=self._tag)

    def starts(self, tenant: TenantId, turns_s: Iterable[float]) -> list[float]:
        """Return the virtual times at which turns of these lengths would begin, one after the other."""
        weight = self._weights.get(tenant, 1.0)
        *starts, _ = accumulate((seconds / weight for seconds in turns_s), initial=self._tag(tenant))
        return starts

    def begin(self, tenant: TenantId, expected_s: float) -> None:
        """A turn begins. Its expected seconds count at once, so that ``pick`` already tells who comes after it."""
        self._virtual_time = max(self._virtual_time, self._tag(tenant))
        self.charge(tenant, expected_s)

    def charge(self, tenant: TenantId, seconds: float) -> None:
        """Count ``seconds`` as used by the tenant. Negative, if less was used than counted before."""
        self._tags[tenant] = self._tag(tenant) + seconds / self._weights.get(tenant, 1.0)

    def _tag(self, tenant: TenantId) -> float:
        return self._tags.get(tenant, 0.0)
