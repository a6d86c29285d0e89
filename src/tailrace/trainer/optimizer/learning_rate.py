"""The course of the learning rate: a function of the step alone, so that resuming needs no state.

Warm-up rises linearly and never trains at rate 0: of ``w`` warm-up steps, step s (from 0) has (s + 1) / (w + 1) of
the peak; step w has the peak. Then it stays, or falls along a line or half a cosine towards 0 at ``max_steps``.
"""

from __future__ import annotations

import math

from tailrace.config.trainer_settings import TrainerSettings


def learning_rate(step: int, settings: TrainerSettings, *, max_steps: int) -> float:
    peak, warmup = settings.learning_rate, settings.warmup_steps
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    done = min(1.0, (step - warmup) / max(1, max_steps - warmup))
    match settings.lr_schedule:
        case "constant":
            return peak
        case "linear":
            return peak * (1.0 - done)
        case "cosine":
            return peak * 0.5 * (1.0 + math.cos(math.pi * done))
