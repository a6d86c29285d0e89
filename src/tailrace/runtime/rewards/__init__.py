"""Has reward processes score responses."""
