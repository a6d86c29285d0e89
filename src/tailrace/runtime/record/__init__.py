"""What a run writes, and how it is continued from that: run directory, journal, metrics, checkpoints."""
