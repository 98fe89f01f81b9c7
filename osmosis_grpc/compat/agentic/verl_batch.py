"""Trajectories as a DataProto of verl, with the tensors that verl's own rollout workers make."""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osmosis_grpc.compat.agentic.trajectory import StepType, Trajectory
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.records.export.verl_batch import Tokens, padded_tokens

_OF_CHATS = (StepType.THOUGHT, StepType.ACTION, StepType.FINAL_ANSWER)


def is_data_proto(value: Any) -> bool:
    """Return whether a value is verl's DataProto. verl is not imported."""
    return any(cls.__name__ == "DataProto" and cls.__module__.startswith("verl.") for cls in type(value).__mro__)


def tensors(
    trajectories: Sequence[Trajectory], pad_id: int, *, prompt_length: int = 0, response_length: int = 0
) -> dict[str, NDArray[Any]]:
    """Return the tensors of a padded batch, a row for each trajectory.

    Args:
        trajectories: Each has one segment of tokens.
        pad_id: The padding token.
        prompt_length: The number of tokens in each prompt row; 0 for that of the longest prompt.
        response_length: The number of tokens in each response row; 0 for that of the longest response.

    Raises:
        InvalidArgument: A trajectory has no tokens or several segments, or is longer than these lengths.
    """
    rows = [_row(trajectory) for trajectory in trajectories]
    width = prompt_length or max((len(row.prompt_ids) for row in rows), default=0)
    length = response_length or max((len(row.response_ids) for row in rows), default=0)
    for trajectory, row in zip(trajectories, rows, strict=True):
        before, after = len(row.prompt_ids), len(row.response_ids)
        if before > width or after > length:
            raise _problem(trajectory, f"has a prompt of {before} and a response of {after} tokens, above the lengths")
    made = padded_tokens(rows, width, length, pad_id)
    if not rows or any(trajectory.final_reward is None for trajectory in trajectories):
        del made["rm_scores"]
    return made


def data_proto(trajectories: Sequence[Trajectory], prompts: Any, pad_id: int) -> Any:
    """Return a DataProto with a row for each trajectory, in the order of the prompts.

    Args:
        trajectories: One for each row of `prompts`.
        prompts: verl's DataProto. The result keeps its columns. Its `meta_info` may set prompt_length and
            response_length.
        pad_id: The tokenizer's pad_token_id.

    Raises:
        InvalidArgument: verl cannot train on a trajectory.
    """
    meta = dict(prompts.meta_info or {})
    lengths = {name: int(meta.get(name) or 0) for name in ("prompt_length", "response_length")}
    arrays = tensors(trajectories, pad_id, **lengths)
    torch: Any = importlib.import_module("torch")
    turns = [sum(step.step_type in _OF_CHATS for step in each.steps) * 2 for each in trajectories]
    others = dict(prompts.non_tensor_batch) | {
        "__num_turns__": np.array(turns, dtype=np.int32),
        "multi_modal_inputs": np.array([{} for _ in trajectories], dtype=object),
    }
    made: Any = type(prompts).from_dict(
        {name: torch.from_numpy(array) for name, array in arrays.items()},
        non_tensors=others,
        meta_info={"timing": {}, "reward_extra_keys": []} | meta,
    )
    return made


def _row(trajectory: Trajectory) -> Tokens:
    if len(trajectory.segments) != 1:
        why = trajectory.error or trajectory.metadata.get("not_trainable") or "the model returned no token ids"
        several = f"has {len(trajectory.segments)} segments of tokens, and a row has one"
        raise _problem(trajectory, several if trajectory.segments else f"cannot be trained on: {why}")
    segment = trajectory.segments[0]
    ids, mask = np.array(segment["ids"], dtype=np.int64), np.array(segment["mask"], dtype=bool)
    if not mask.any():
        raise _problem(trajectory, "has no sampled token")
    begin, logprobs = int(mask.argmax()), np.where(mask, np.array(segment["logprobs"], dtype=np.float32), 0.0)
    response = ids[begin:], mask[begin:].astype(np.int64), logprobs[begin:].astype(np.float32)
    return Tokens(ids[:begin], *response, trajectory.final_reward or 0.0)


def _problem(trajectory: Trajectory, text: str) -> InvalidArgument:
    return InvalidArgument("prompts", f"the rollout {trajectory.request_id} {text}")
