"""The replay engine: returns the saved responses of another run instead of generating."""
