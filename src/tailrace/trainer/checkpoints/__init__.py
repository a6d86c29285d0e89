"""Writes and reads checkpoints, whole or in shards, and exports models."""
