"""Starts workers as processes, and brings what they say to the event loop in order. ``worker.py`` is the contract that
other kinds of workers (``runtime/ray``) keep too."""
