"""The embedded rollout engine: plain torch, continuous batching, CPU and CUDA."""

from tailrace.engines.native.engine import NativeEngine
from tailrace.engines.native.limits import EngineLimits

__all__ = ["EngineLimits", "NativeEngine"]
