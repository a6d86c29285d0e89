"""Threads of the controller: slow work done one job after the other, and calls that come back to the event loop."""
