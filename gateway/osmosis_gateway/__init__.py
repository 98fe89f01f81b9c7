"""HTTP in front of an agent server: the legacy contract."""
