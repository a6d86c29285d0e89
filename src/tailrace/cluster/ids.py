"""Names of what the cluster scheduler decides about."""

from __future__ import annotations

from typing import NewType

JobId = NewType("JobId", str)
NodeId = NewType("NodeId", str)
NodeGroupId = NewType("NodeGroupId", str)
"""A fixed set of nodes that work on one job's training at a time."""
TenantId = NewType("TenantId", str)
