"""Converts outcomes to the padded batch that verl makes from AgentLoopOutputs, as NumPy arrays.

Keys, shapes and types are those of verl 0.9.1, AgentLoopWorker._agent_loop_postprocess and _postprocess in
verl/experimental/agent_loop/agent_loop.py. The shapes depend on the configuration, not on the longest row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import RolloutOutcome
from osmosis_grpc.protocol.types.trainable import Outcomes, Row
from osmosis_grpc.records.export.verl_rows import ROUTED_EXPERTS, VerlConfig, VerlRow, VerlRows, object_array

_DEFAULT_FIELDS = ("turn_scores", "tool_rewards", "min_global_steps", "max_global_steps", "extras")
"""The extra fields that verl adds to every batch."""

InputsOf = Callable[[RolloutOutcome], Mapping[str, Any]]
"""Returns the dataset's columns for an outcome, such as uid, raw_prompt and data_source."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaddedBatch:
    """A padded batch of verl, with b rows, prompt length p and response length r."""

    batch: Mapping[str, NDArray[Any]]
    """The tensors by name. All have b rows. int64: prompts (b, p), responses (b, r), response_mask (b, r), input_ids,
    attention_mask and position_ids (b, p + r). float32: rollout_log_probs and rm_scores (b, r). int16: routed_experts
    (b, p + r, layers, experts) if requested."""
    non_tensor_batch: Mapping[str, NDArray[Any]]
    """The other columns, each with b values: `__num_turns__` as int32, parts of the reward, and objects."""
    meta_info: Mapping[str, Any]
    """The metrics of each row, and the names of the reward's parts."""
    rows: tuple[Row, ...]
    """The segment of each row."""
    weights: NDArray[np.float32]
    """float32, shape (b,): 1 / the number of trainable segments of the row's rollout. Not part of verl's batch."""
    pad_id: int
    skipped: int
    """The number of outcomes, samples and segments that were left out."""

    def __len__(self) -> int:
        return len(self.rows)


def padded_batch(
    outcomes: Outcomes, config: VerlConfig, *, pad_id: int, inputs_of: InputsOf | None = None
) -> PaddedBatch:
    """Return the padded batch of the trainable segments of outcomes, in their order.

    Args:
        outcomes: The outcomes, or groups.
        config: The configuration. Both lengths must be set.
        pad_id: The tokenizer's pad_token_id.
        inputs_of: Returns the dataset's columns of an outcome; by default uid (the group's id, else the rollout's) and
            raw_prompt (the messages before the first reply).

    Raises:
        InvalidArgument: verl cannot train on an outcome, or there is no row; see VerlConfig.
    """
    made = VerlRows(config)
    rows = list(made.all(outcomes))
    return pad_rows(rows, config, pad_id=pad_id, inputs_of=inputs_of, skipped=made.counts()[1])


def pad_rows(
    rows: Sequence[VerlRow], config: VerlConfig, *, pad_id: int, inputs_of: InputsOf | None = None, skipped: int = 0
) -> PaddedBatch:
    """Return the padded batch of rows. Raises InvalidArgument without rows or lengths; see padded_batch()."""
    width, length = check_lengths(config)
    if not rows:
        raise InvalidArgument("outcomes", "no segment can be trained on, so there is no batch")
    if not 0 <= pad_id < 2**63:
        raise InvalidArgument("pad_id", f"{pad_id} is not a token id")
    tokens = [
        Tokens(row.prompt_ids, row.response_ids, row.response_mask, row.response_logprobs, row.source.reward)
        for row in rows
    ]
    batch = padded_tokens(tokens, width, length, pad_id)
    if rows[0].routed_experts is not None:
        batch[ROUTED_EXPERTS] = _padded_experts(rows, width, width + length)
    batch["rm_scores"] = batch.pop("rm_scores")  # verl has it last
    return PaddedBatch(
        batch=batch,
        non_tensor_batch=_columns(rows, inputs_of or default_inputs),
        meta_info={
            "metrics": [dict(row.metrics) for row in rows],
            "reward_extra_keys": list(rows[0].extra_fields["reward_extra_info"]),
        },
        rows=tuple(row.source.row for row in rows),
        weights=np.array([row.source.weight for row in rows], dtype=np.float32),
        pad_id=pad_id,
        skipped=skipped,
    )


class Tokens(NamedTuple):
    """The tokens of one row: the prompt, and the response with its logprobs and a mask (1 for sampled tokens)."""

    prompt_ids: NDArray[np.int64]
    response_ids: NDArray[np.int64]
    response_mask: NDArray[np.int64]
    response_logprobs: NDArray[np.float32]
    reward: float


def padded_tokens(rows: Sequence[Tokens], width: int, length: int, pad_id: int) -> dict[str, NDArray[Any]]:
    """Return the tensors of rows: prompts end at column `width`, and responses begin there. See PaddedBatch.batch."""
    count = len(rows)
    input_ids = np.full((count, width + length), pad_id, dtype=np.int64)
    attention_mask = np.zeros((count, width + length), dtype=np.int64)
    response_mask = np.zeros((count, length), dtype=np.int64)
    logprobs, scores = (np.zeros((count, length), dtype=np.float32) for _ in range(2))
    for number, row in enumerate(rows):
        begin, end, sampled = width - len(row.prompt_ids), width + len(row.response_ids), len(row.response_ids)
        input_ids[number, begin:width] = row.prompt_ids
        input_ids[number, width:end] = row.response_ids
        attention_mask[number, begin:end] = 1
        response_mask[number, :sampled] = row.response_mask
        logprobs[number, :sampled] = row.response_logprobs
        scores[number, sampled - 1] = row.reward
    return {
        "prompts": input_ids[:, :width].copy(),
        "responses": input_ids[:, width:].copy(),
        "response_mask": response_mask,
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "position_ids": np.clip(np.cumsum(attention_mask, axis=1) - 1, 0, None),
        "rollout_log_probs": logprobs,
        "rm_scores": scores,
    }


def check_lengths(config: VerlConfig) -> tuple[int, int]:
    """Return the prompt length and the response length. Raises InvalidArgument if one is missing."""
    for name in ("prompt_length", "response_length"):
        if getattr(config, name) is None:
            raise InvalidArgument(name, f"a padded batch needs it; it is verl's rollout.{name}")
    assert config.prompt_length is not None
    assert config.response_length is not None
    return config.prompt_length, config.response_length


def default_inputs(outcome: RolloutOutcome) -> dict[str, Any]:
    """Return the columns uid and raw_prompt of an outcome, in place of the columns of the trainer's dataset."""
    messages = [dict(message) for message in outcome.messages]
    first = next((index for index, message in enumerate(messages) if message.get("role") == "assistant"), None)
    return {"uid": outcome.rollout_id if outcome.group is None else outcome.group.id, "raw_prompt": messages[:first]}


def _padded_experts(rows: Sequence[VerlRow], width: int, total: int) -> NDArray[np.int16]:
    assert rows[0].routed_experts is not None
    made = np.zeros((len(rows), total, *rows[0].routed_experts.shape[1:]), dtype=np.int16)
    for number, row in enumerate(rows):
        if row.routed_experts is None:
            raise InvalidArgument(ROUTED_EXPERTS, f"{row.source} has none, and rows before it have them")
        begin = width - len(row.prompt_ids)
        made[number, begin : begin + len(row.routed_experts)] = row.routed_experts
    return made


def _columns(rows: Sequence[VerlRow], inputs_of: InputsOf) -> dict[str, NDArray[Any]]:
    """Return the columns of non_tensor_batch, in the order and with the types of verl."""
    columns: dict[str, NDArray[Any]] = {"__num_turns__": np.array([row.num_turns for row in rows], dtype=np.int32)}
    inputs = [dict(inputs_of(row.source.outcome)) for row in rows]
    for row, given in zip(rows, inputs, strict=True):
        if given.keys() != inputs[0].keys():
            raise InvalidArgument(
                "inputs_of", f"returns {sorted(given)} for {row.source}, and {sorted(inputs[0])} for the first row"
            )
    for name in inputs[0]:
        columns[name] = object_array(given[name] for given in inputs)
    for name in rows[0].extra_fields["reward_extra_info"]:
        columns[name] = np.array([row.extra_fields["reward_extra_info"][name] for row in rows])
    columns["multi_modal_inputs"] = object_array({} for _ in rows)
    names = dict.fromkeys(name for row in rows for name in row.extra_fields)
    for name in (*names, *(name for name in _DEFAULT_FIELDS if name not in names)):
        columns[name] = object_array(row.extra_fields.get(name) for row in rows)
    return columns
