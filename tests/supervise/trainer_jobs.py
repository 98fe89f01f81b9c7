"""How each job of the trainer and its ledger is made to run, and what its failure does."""

SCENARIOS = {}
"""By job: makes it run after fail(), and checks what its failure does to those who wait."""
