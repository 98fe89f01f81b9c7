"""Writes values, which may contain NumPy arrays, as lines of JSON, and rollouts as OpenAI messages."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.records.export.recorded import RecordedRollout, facts


def json_line(value: Any, *, ascii_only: bool = False) -> str:
    """Encode a value as a line of JSON, with arrays as lists. Raises InvalidArgument if JSON cannot express it.

    With `ascii_only`, the line is safe to print: it contains no control characters of terminals.
    """
    try:
        line = json.dumps(value, ensure_ascii=ascii_only, allow_nan=False, separators=(",", ":"), default=_plain)
        return (line.replace("\x7f", "\\u007f") if ascii_only else line) + "\n"
    except (TypeError, ValueError) as error:
        raise InvalidArgument("outcomes", f"a value is not JSON: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return value
    try:
        return dict(value)  # a read-only mapping
    except (TypeError, ValueError):
        raise TypeError(f"{type(value).__name__} is not JSON") from None


def message_lines(rollout: RecordedRollout) -> Iterator[dict[str, Any]]:
    """Yield a line for each sample with messages, in the order of the samples.

    The messages are the agent's, unchanged. `reward` in the metadata is the reward of the sample or, if it has none, of
    the rollout.
    """
    outcome = rollout.outcome
    for name, sample in outcome.samples.items():
        if not sample.messages:
            continue
        metadata = facts(outcome) | {"sample": name, "reward": outcome.reward_of(name)}
        if sample.cut:
            metadata["cut"] = sample.cut
        if sample.train is False:
            metadata["train"] = False
        if rollout.label is not None:
            metadata["label"] = rollout.label
        line: dict[str, Any] = {"messages": list(sample.messages)}
        if rollout.tools:
            line["tools"] = list(rollout.tools)
        yield line | {"metadata": metadata}
