"""The limits of a journal that drops nothing: the journal of a run, and of a folder that a command opens."""

KEPT = 10 * 365 * 86_400.0
"""It keeps its rollouts for this many seconds."""
BUDGET = 2**62
"""Its disk budget in bytes. A journal over its budget drops rollouts."""
