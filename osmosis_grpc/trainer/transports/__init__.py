"""Transports between a trainer and its agent servers: attached streams, and callbacks."""
