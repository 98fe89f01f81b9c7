"""The messages of every measured rollout, in all modes: texts of 200 characters."""

BEGIN = "b" * 200
"""The first message, the user's."""
REPLY = "r" * 200
"""Every reply of the model."""
RESULT = "t" * 200
"""The agent's message between two replies: a tool's result, in the role of the user."""

IDS_PER_MESSAGE = 16
"""Prompt ids of a message that no model sampled."""
VOCABULARY = 151_936


def begin() -> list[dict[str, str]]:
    """Return the first messages of a rollout."""
    return [{"role": "user", "content": BEGIN}]


def result() -> dict[str, str]:
    """Return the message between two replies."""
    return {"role": "user", "content": RESULT}
