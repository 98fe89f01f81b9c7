"""Faults and attacks: one side breaks, lies, floods or never reads, and the tests check the others.

A test belongs here if its subject is a fault of docs/reliability.md and if it uses real sockets or real
processes. Tests of what a single package refuses belong to that package: tests/protocol/wire for values, tests/server
and tests/trainer for frames and RPCs, tests/gateway for HTTP. Tests above 2 s are marked slow; `make faults` runs both.
"""
