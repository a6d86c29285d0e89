"""How versions of the weights get from the trainer to the rollout instances."""
