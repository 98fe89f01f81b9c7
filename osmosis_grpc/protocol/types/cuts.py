"""The limits that cut replies and rollouts (see Sample.cut), and what a trainer may do with what was cut or dropped."""

from typing import Literal, get_args

from osmosis_grpc.protocol.errors import InvalidArgument

Cut = Literal["train", "mask", "skip"]
"""What to do with a sample that a limit has cut: train on it, mask all its tokens, or leave it out."""
Dropped = Literal["train", "skip"]
"""What to do with replies that the agent dropped: train on them, or leave their segments out."""

NATURAL = frozenset({"", "stop", "tool_calls", "function_call"})
"""The finish reasons of replies that ended by themselves."""
ABORTED = frozenset({"abort", "aborted"})
"""The finish reasons of replies on which the engine gave up, for example to load new weights."""
CUTS = {
    "length": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "context",
    **dict.fromkeys(ABORTED, "abort"),
}
"""The finish reasons of replies that were cut, and what cut them."""
ROLLOUT_CUTS = {
    "length": "length",
    "max_turns": "max_turns",
    "max_steps": "max_turns",
    "max_tokens": "max_tokens",
    "token_budget": "max_tokens",
    "timeout": "time",
}
"""The finish reasons of rollouts that a limit has cut, and the limits."""


def check_choices(cut: Cut, dropped: Dropped) -> None:
    """Raise InvalidArgument for a value that is not one of the choices."""
    for name, value, known in (("cut", cut, get_args(Cut)), ("dropped", dropped, get_args(Dropped))):
        if value not in known:
            raise InvalidArgument(name, f"{value!r} is not one of {', '.join(known)}")
