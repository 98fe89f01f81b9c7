"""The contract in Python, without I/O: values, their wire form, errors, and the rules of a stream."""
