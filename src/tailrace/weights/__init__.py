"""Versions of the weights on their way from the trainer to the rollout instances."""
