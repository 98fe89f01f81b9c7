"""The common part of sandboxes in containers: running programs, and reading and writing files."""
