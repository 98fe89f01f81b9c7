"""Reads rollouts for people: from a running server, or from a state folder that a server may be using.

source_port.py defines the Source port, and history.py rebuilds a rollout from its events. The viewer and the commands
that show rollouts share this package, which depends on neither terminals nor web pages.
"""
