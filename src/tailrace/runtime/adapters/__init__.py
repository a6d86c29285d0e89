"""Performs the commands of the core with workers, and makes what they report events."""
