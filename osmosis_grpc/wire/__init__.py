"""Between the protocol's messages and Python's values: one file per proto file.

`to_wire` and `from_wire` are each other's inverse. Whatever comes off the wire is checked
here, once; what is out of bounds raises InvalidArgument naming the field. Nothing here
sends or receives.
"""
