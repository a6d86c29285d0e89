"""``--dry-run``: everything that can be said about a run before it starts, without writing anything."""
