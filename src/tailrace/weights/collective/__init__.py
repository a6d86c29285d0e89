"""The channel over torch.distributed, and how its processes find one another."""
