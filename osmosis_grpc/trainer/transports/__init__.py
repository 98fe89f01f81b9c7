"""Transports between a trainer and its agent servers: attachments and callbacks."""
