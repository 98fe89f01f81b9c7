"""Faults and attacks: what happens to others while one side breaks, lies, floods or never reads.

Here belongs a test whose subject is a fault of docs/reliability.md, named for its row where that
helps (F30, A8), and which holds over real sockets or real processes. What one room refuses by
itself is tested in that room: tests/wire for values, tests/server and tests/trainer for frames and
RPCs, tests/gateway for HTTP. Whatever takes longer than 2 s is marked slow; `make faults` runs both.
"""
