"""Channels with two slots of memory that all processes of a machine see: one is read while the other is written."""
