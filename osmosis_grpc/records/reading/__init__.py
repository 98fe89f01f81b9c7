"""Reads rollouts for people: from a running server, or from a state folder that a server may be using.

source_port.py has the Source port. history.py rebuilds a rollout from its events. The commands that look and the viewer
share this package. Nothing in it knows a terminal or a web page.
"""
