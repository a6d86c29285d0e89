"""One step: micro-batches, the objective and its totals, the critic, which samples count."""
