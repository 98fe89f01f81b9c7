"""The reward: 1.0 for the right number after ####, else 0.0."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from osmosis_grpc.agent import osmosis_reward


def extract_answer(text: str) -> str | None:
    """What stands after the last ####."""
    found = re.findall(r"####\s*(\S+)", text)
    return found[-1] if found else None


@osmosis_reward
def compute_reward(
    solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> float:
    """Compare numbers, not texts: 45 is 45.0."""
    answer = extract_answer(solution_str)
    try:
        return float(answer is not None and math.isclose(float(answer), float(ground_truth), rel_tol=1e-9))
    except ValueError:
        return 0.0


def reward_of(messages: Sequence[Mapping[str, Any]], ground_truth: str | None) -> float | None:
    """The reward of a conversation; None when there is nothing to compare with."""
    if ground_truth is None:
        return None
    texts = [m["content"] for m in messages if m.get("role") == "assistant" and isinstance(m.get("content"), str)]
    return compute_reward(solution_str=texts[-1] if texts else "", ground_truth=ground_truth)
