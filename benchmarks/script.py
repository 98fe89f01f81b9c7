"""What is said in every measured rollout, whichever way it travels: texts of 200 characters."""

BEGIN = "b" * 200
"""The user's message that a rollout begins with."""
REPLY = "r" * 200
"""The model's reply, again and again."""
RESULT = "t" * 200
"""What the agent adds between two replies: a tool's result, as a message of the user's."""

IDS_PER_MESSAGE = 16
"""Prompt ids of a message that no model sampled."""
VOCABULARY = 151_936


def begin() -> list[dict[str, str]]:
    """The messages that a rollout begins with."""
    return [{"role": "user", "content": BEGIN}]


def result() -> dict[str, str]:
    """The message between two replies."""
    return {"role": "user", "content": RESULT}
