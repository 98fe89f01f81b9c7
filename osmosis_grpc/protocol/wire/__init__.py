"""Converts between the protocol's messages and Python's values: one file per proto file.

Each `to_wire` is the inverse of its `from_wire`. This package checks every value from the wire once. It raises
InvalidArgument naming the field if a value is out of bounds. Nothing in this package sends or receives.
"""
