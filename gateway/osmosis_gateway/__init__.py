"""Serves the legacy HTTP contract in front of an agent server."""
