"""Trajectories as a DataProto of verl, with the tensors that its own rollout workers make."""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osmosis_grpc.compat.agentic.trajectory import StepType, Trajectory
from osmosis_grpc.protocol.errors import InvalidArgument

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
        pad_id: The token on both sides.
        prompt_length: The width of the prompts; 0 for that of the longest.
        response_length: The width of the responses; 0 for that of the longest.

    Raises:
        InvalidArgument: A trajectory has no tokens or several segments, or is longer than the width.
    """
    rows = [_row(trajectory) for trajectory in trajectories]
    width = prompt_length or max((begin for begin, *_ in rows), default=0)
    length = response_length or max((len(ids) - begin for begin, ids, *_ in rows), default=0)
    count = len(rows)
    input_ids = np.full((count, width + length), pad_id, dtype=np.int64)
    attention = np.zeros((count, width + length), dtype=np.int64)
    mask = np.zeros((count, length), dtype=np.int64)
    logprobs, scores = (np.zeros((count, length), dtype=np.float32) for _ in range(2))
    for number, (trajectory, (begin, ids, sampled, probs)) in enumerate(zip(trajectories, rows, strict=True)):
        rest = len(ids) - begin
        if begin > width or rest > length:
            raise _problem(trajectory, f"has a prompt of {begin} and a response of {rest} tokens, above the lengths")
        input_ids[number, width - begin : width + rest] = ids
        attention[number, width - begin : width + rest] = 1
        mask[number, :rest] = sampled[begin:]
        logprobs[number, :rest] = np.where(sampled[begin:], probs[begin:], 0.0)
        scores[number, rest - 1] = trajectory.final_reward or 0.0
    made: dict[str, NDArray[Any]] = {
        "prompts": input_ids[:, :width].copy(),
        "responses": input_ids[:, width:].copy(),
        "response_mask": mask,
        "input_ids": input_ids,
        "attention_mask": attention,
        "position_ids": np.clip(np.cumsum(attention, axis=1) - 1, 0, None),
        "rollout_log_probs": logprobs,
    }
    if rows and all(trajectory.final_reward is not None for trajectory in trajectories):
        made["rm_scores"] = scores
    return made


def data_proto(trajectories: Sequence[Trajectory], prompts: Any, pad_id: int) -> Any:
    """Return a DataProto with a row for each trajectory, in the order of the prompts.

    Args:
        trajectories: One for each row of `prompts`.
        prompts: verl's DataProto. Its columns are in the result, and `meta_info` may have both lengths.
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


def _row(trajectory: Trajectory) -> tuple[int, NDArray[np.int64], NDArray[np.bool_], NDArray[np.float32]]:
    """Return the length of the prompt, and all ids, masks and logprobs."""
    if len(trajectory.segments) != 1:
        why = trajectory.error or trajectory.metadata.get("not_trainable") or "the model returned no token ids"
        several = f"has {len(trajectory.segments)} segments of tokens, and a row has one"
        raise _problem(trajectory, several if trajectory.segments else f"cannot be trained on: {why}")
    segment = trajectory.segments[0]
    ids, mask = np.array(segment["ids"], dtype=np.int64), np.array(segment["mask"], dtype=bool)
    if not mask.any():
        raise _problem(trajectory, "has no sampled token")
    return int(mask.argmax()), ids, mask, np.array(segment["logprobs"], dtype=np.float32)


def _problem(trajectory: Trajectory, text: str) -> InvalidArgument:
    return InvalidArgument("prompts", f"the rollout {trajectory.request_id} {text}")
