"""The messages of every measured rollout, in all modes: texts of 200 characters."""

REPLY = "r" * 200

IDS_PER_MESSAGE = 16
"""Prompt ids of a message that no model sampled."""
VOCABULARY = 151_936


def begin() -> list[dict[str, str]]:
    """Return the first messages of a rollout."""
    return [{"role": "user", "content": "b" * 200}]


def result() -> dict[str, str]:
    """Return the agent's message between two replies: a tool's result, in the role of the user."""
    return {"role": "user", "content": "t" * 200}
