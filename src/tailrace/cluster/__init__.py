"""Decides for many jobs on shared accelerators: which jobs share a node group, and whose phase runs next.

Pure like ``core``: facts come in as events with their time, decisions go out as commands; no clock, no I/O.
``docs/sharing.md`` explains the idea and the words.
"""
