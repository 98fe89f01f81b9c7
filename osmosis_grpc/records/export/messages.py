"""Converts rollouts to lines of OpenAI messages: `messages`, `tools`, and `metadata` about the rollout."""

from collections.abc import Iterator
from typing import Any

from osmosis_grpc.records.export.recorded import RecordedRollout, facts


def message_lines(rollout: RecordedRollout) -> Iterator[dict[str, Any]]:
    """Yield a line for each sample with messages, in the order of the samples.

    The messages are those of the agent, unchanged. `reward` in the metadata is the sample's, or else the rollout's.
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
