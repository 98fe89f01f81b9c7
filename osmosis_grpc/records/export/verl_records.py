"""Converts outcomes to the records that verl's V1 trainer reads from its TransferQueue.

The format is the one of verl 0.9.1, verl/trainer/ppo/v1/agent_loop_tq.py. Records are not padded. verl takes the group
of a record from its key: it is the text before the first "_".
"""

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import RolloutOutcome
from osmosis_grpc.protocol.types.trainable import Outcomes, check_choice, flatten, no_outcomes
from osmosis_grpc.records.export.verl_batch import InputsOf, default_inputs
from osmosis_grpc.records.export.verl_rows import ROUTED_EXPERTS, VerlConfig, VerlRow, VerlRows

Partition = Literal["train", "val"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VerlRecord:
    """One record of the TransferQueue."""

    key: str
    """UID_SESSION_INDEX: the group, the index of the rollout in its group, the index of the segment in its rollout."""
    partition: Partition
    fields: Mapping[str, Any]
    """The fields by name. Fields with a value for each token are one-dimensional arrays."""
    tags: Mapping[str, Any]
    """The status, and the lengths and global steps as ints."""


@dataclass(slots=True)
class VerlRecords:
    """Converts outcomes one after the other, and checks that all records have the same fields and different keys."""

    config: VerlConfig
    global_steps: int
    """The step of the trainer, also used for segments without known versions."""
    partition: Partition = "train"
    inputs_of: InputsOf | None = None
    rows: VerlRows = field(init=False)
    _keys: set[str] = field(default_factory=set, init=False)
    _names: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        check_choice("partition", self.partition, get_args(Partition))
        self.global_steps = _step("global_steps", self.global_steps)
        self.rows = VerlRows(self.config)

    def of(self, outcome: RolloutOutcome) -> list[VerlRecord]:
        """Return the records of the next outcome. Raises InvalidArgument with the rollout's id and the reason."""
        rows = self.rows.of(outcome)
        inputs = dict((self.inputs_of or default_inputs)(outcome)) if rows else {}
        return [self._record(row, inputs, index) for index, row in enumerate(rows)]

    def _record(self, row: VerlRow, inputs: dict[str, Any], index: int) -> VerlRecord:
        outcome = row.source.outcome
        uid = inputs.get("uid")
        if not isinstance(uid, str) or not uid or "_" in uid:
            raise InvalidArgument(
                "uid",
                f"{row.source} has the uid {uid!r}. verl takes the text before the first _ of a key as the uid, so a "
                "uid is a text without _. Pass inputs_of=, which returns the uid of an outcome",
            )
        session = 0 if outcome.group is None else outcome.group.index
        key = f"{uid}_{session}_{index}"
        if key in self._keys:
            raise InvalidArgument("uid", f"{row.source} has the key {key}, and an earlier rollout has it, too")
        self._keys.add(key)
        steps = self._steps(row)
        made = _fields(row, {**row.extra_fields, **steps})
        made |= inputs | {"session_id": session, "global_steps": self.global_steps}
        self._names = self._names or sorted(made)
        if sorted(made) != self._names:
            raise InvalidArgument("inputs_of", f"{row.source} has the fields {sorted(made)}, others {self._names}")
        prompt, response = len(row.prompt_ids), len(row.response_ids)
        lengths = {"prompt_len": prompt, "response_len": response, "seq_len": prompt + response}
        tags = {"status": "success", **lengths, "global_steps": self.global_steps, **steps}
        return VerlRecord(key=key, partition=self.partition, fields=made, tags=tags)

    def _steps(self, row: VerlRow) -> dict[str, int]:
        """Return the global steps of a row as ints, because verl's V1 trainer fails on None."""
        names = ("min_global_steps", "max_global_steps")
        known = {name: row.extra_fields[name] for name in names}
        return {name: self.global_steps if value is None else value for name, value in known.items()}


def verl_records(
    outcomes: Outcomes,
    config: VerlConfig | None = None,
    *,
    global_steps: int,
    partition: Partition = "train",
    inputs_of: InputsOf | None = None,
) -> Iterator[VerlRecord]:
    """Yield a record for each trainable segment of outcomes, in their order.

    Args:
        outcomes: The outcomes, or groups.
        config: Lengths and choices.
        global_steps: The step of the trainer.
        partition: The partition of the TransferQueue.
        inputs_of: Returns the dataset's columns of an outcome; see padded_batch().

    Raises:
        InvalidArgument: There are no outcomes, verl cannot train on one, or a uid contains "_".
    """
    made = VerlRecords(config or VerlConfig(), global_steps, partition, inputs_of)
    outcome = None
    for outcome in flatten(outcomes):
        yield from made.of(outcome)
    if outcome is None:
        raise no_outcomes("outcomes")


def _fields(row: VerlRow, extra_fields: dict[str, Any]) -> dict[str, Any]:
    count = len(row.prompt_ids) + len(row.response_ids)
    scores = np.zeros(len(row.response_ids), dtype=np.float32)
    scores[-1] = row.source.reward
    made: dict[str, Any] = {
        "prompts": row.prompt_ids,
        "responses": row.response_ids,
        "response_mask": row.response_mask,
        "loss_mask": row.response_mask,
        "input_ids": np.concatenate([row.prompt_ids, row.response_ids]),
        "position_ids": np.arange(count, dtype=np.int64),
        "rollout_log_probs": row.response_logprobs,
        "rm_scores": scores,
        "num_turns": row.num_turns,
        "metrics": dict(row.metrics),
        "extra_fields": extra_fields,
        "multi_modal_inputs": {},
    }
    if row.routed_experts is not None:
        made[ROUTED_EXPERTS] = row.routed_experts
    return made


def _step(name: str, value: object) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgument(name, f"{value!r} is not an int") from None
