"""Runs the program of a response against test cases, in isolation."""
