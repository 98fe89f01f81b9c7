"""What verl's own workers make of our AgentLoopOutputs: V0's padded batch, and V1's records."""

import asyncio
import inspect
import pickle
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from osmosis_grpc.protocol.types import RolloutOutcome
from osmosis_grpc.records.export import PaddedBatch, VerlConfig, agent_loop_outputs, verl_records
from osmosis_grpc.records.export.verl_batch import default_inputs


class NoQueue(ModuleType):
    """A package with any class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def tokenizer(pad_id: int) -> Any:
    """Returns a tokenizer of transformers with this pad id. verl pads with its pad()."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    class Padding(PreTrainedTokenizerFast):
        pad_token_id = pad_id

    tokens = Tokenizer(WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]"))
    return Padding(tokenizer_object=tokens, pad_token="[PAD]", unk_token="[UNK]")


def verl_batch(outcomes: Sequence[RolloutOutcome], config: VerlConfig, pad_id: int) -> Any:
    """Returns the DataProto that verl makes of our AgentLoopOutputs."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, AgentLoopWorker

    worker = _worker(AgentLoopWorker, config, pad_id)
    inner, columns = [], {}
    for outcome in outcomes:
        inputs = default_inputs(outcome)
        for fields in agent_loop_outputs(outcome, config):
            output = AgentLoopOutput(**fields)
            inner.append(asyncio.run(worker._agent_loop_postprocess(output, False, raw_prompt=inputs["raw_prompt"])))
            columns.setdefault("uid", []).append(inputs["uid"])
    return worker._postprocess(inner, {"uid": np.array(columns["uid"], dtype=object)})


def verl_v1(outcomes: Sequence[RolloutOutcome], config: VerlConfig, pad_id: int) -> list[tuple[str, dict, dict]]:
    """Returns the keys, fields and tags that verl's V1 worker puts into the TransferQueue."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

    # The package TransferQueue is a dependency of its own. Nothing of it is used but the call that is replaced below.
    sys.modules.setdefault("transfer_queue", NoQueue("transfer_queue"))
    from verl.trainer.ppo.v1 import agent_loop_tq

    put: list[tuple[str, dict, dict]] = []

    async def async_kv_batch_put(keys, fields, tags, partition_id):
        assert partition_id == "train"
        put.extend(zip(keys, fields, tags, strict=True))

    agent_loop_tq.tq = SimpleNamespace(async_kv_batch_put=async_kv_batch_put)
    made_tensordict, agent_loop_tq.list_of_dict_to_tensordict = agent_loop_tq.list_of_dict_to_tensordict, list
    try:
        cls = inspect.unwrap(agent_loop_tq.AgentLoopWorkerTQ)
        cls = getattr(cls, "__ray_metadata__", SimpleNamespace(modified_class=cls)).modified_class
        worker = _worker(cls, config, pad_id)
        for outcome in outcomes:
            outputs = [AgentLoopOutput(**fields) for fields in agent_loop_outputs(outcome, config)]
            inputs = default_inputs(outcome)
            session = outcome.group.index if outcome.group is not None else 0
            kwargs = {**inputs, "session_id": session, "global_steps": 7}
            asyncio.run(worker._agent_loop_postprocess(outputs, False, **kwargs))
    finally:
        agent_loop_tq.list_of_dict_to_tensordict = made_tensordict
    made_tensordict([fields for _, fields, _ in put])
    return put


def _worker(cls: Any, config: VerlConfig, pad_id: int) -> Any:
    worker = object.__new__(cls)
    worker.tokenizer = tokenizer(pad_id)
    worker.rollout_config = SimpleNamespace(prompt_length=config.prompt_length, response_length=config.response_length)
    worker.processor, worker.distillation_enabled, worker.reward_loop_worker_handles = None, False, None
    worker._get_mm_processor_kwargs = lambda *_: {}
    return worker


def differences(ours: PaddedBatch, theirs: Any) -> list[str]:
    """Returns what differs between our batch and verl's DataProto; empty if nothing does."""
    found = []
    tensors = {name: value.numpy() for name, value in theirs.batch.items()}
    if ours.batch.keys() != tensors.keys():
        found.append(f"tensors {sorted(ours.batch)} and {sorted(tensors)}")
    for name in ours.batch.keys() & tensors.keys():
        one, other = ours.batch[name], tensors[name]
        if (one.dtype, one.shape) != (other.dtype, other.shape) or not np.array_equal(one, other):
            found.append(f"{name}: {one.dtype}{one.shape} and {other.dtype}{other.shape}, or other values")
    columns = theirs.non_tensor_batch
    if ours.non_tensor_batch.keys() != columns.keys():
        found.append(f"columns {sorted(ours.non_tensor_batch)} and {sorted(columns)}")
    for name in ours.non_tensor_batch.keys() & columns.keys():
        one, other = ours.non_tensor_batch[name], columns[name]
        if (one.dtype, one.shape) != (other.dtype, other.shape) or one.tolist() != other.tolist():
            found.append(f"{name}: {one!r:.100} and {other!r:.100}")
    if ours.meta_info != theirs.meta_info:
        found.append(f"meta_info {ours.meta_info!r:.200} and {theirs.meta_info!r:.200}")
    return found


def used(ours: PaddedBatch) -> list[str]:
    """Returns which operations of verl's DataProto fail on our batch."""
    import torch
    from verl import DataProto

    tensors = {name: torch.from_numpy(value) for name, value in ours.batch.items()}
    made = DataProto.from_dict(tensors, non_tensors=dict(ours.non_tensor_batch), meta_info=dict(ours.meta_info))
    made.check_consistency()
    again = pickle.loads(pickle.dumps(made))
    joined = DataProto.concat([again.select(), made.select()])
    chunks = joined.chunk(2)
    united = made.union(DataProto.from_dict({"advantages": torch.zeros(len(made), 1)}))
    right = len(joined) == 2 * len(made) and [len(chunk) for chunk in chunks] == [len(made)] * 2
    return [] if right and "advantages" in united.batch else ["DataProto's operations"]


def v1_differences(outcomes: Sequence[RolloutOutcome], config: VerlConfig, pad_id: int) -> list[str]:
    """Returns what differs between our records and those of verl's V1 worker."""
    found = []
    ours = list(verl_records(outcomes, config, global_steps=7))
    theirs = verl_v1(outcomes, config, pad_id)
    if [record.key for record in ours] != [key for key, _, _ in theirs]:
        found.append("keys")
    for record, (key, fields, tags) in zip(ours, theirs, strict=True):
        if record.tags != tags or any(type(record.tags[name]) is not type(tags[name]) for name in tags):
            found.append(f"{key}: tags {record.tags} and {tags}")
        if record.fields.keys() != fields.keys():
            found.append(f"{key}: fields {sorted(record.fields)} and {sorted(fields)}")
        for name in record.fields.keys() & fields.keys():
            one, other = record.fields[name], fields[name]
            if isinstance(one, np.ndarray):
                other = other.numpy()
                same = one.dtype == other.dtype and np.array_equal(one, other)
            else:
                same = one == other
            if not same:
                found.append(f"{key}: {name}: {one!r:.100} and {other!r:.100}")
    return found


def as_json(batch: Any) -> dict[str, Any]:
    """Returns a DataProto as JSON."""
    tensors = {name: value.numpy() for name, value in batch.batch.items()}
    columns = dict(batch.non_tensor_batch)
    return {
        "batch": {name: {"dtype": str(value.dtype), "values": value.tolist()} for name, value in tensors.items()},
        "non_tensor_batch": {name: {"dtype": str(v.dtype), "values": v.tolist()} for name, v in columns.items()},
        "meta_info": batch.meta_info,
    }
