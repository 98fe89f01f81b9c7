"""Converts between the protocol's messages and Python's values: one file per proto file.

Each `to_wire` is the inverse of its `from_wire`. Every value from the wire is checked here, once: a value out of
bounds raises InvalidArgument naming the field. Nothing here sends or receives.
"""
