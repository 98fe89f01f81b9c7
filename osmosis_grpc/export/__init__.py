"""Converts outcomes to the formats of trainers and tools.

For verl, agent_loop_outputs() returns the fields of AgentLoopOutput, padded_batch() the padded batch, and
verl_records() the records of the V1 trainer's TransferQueue. They are NumPy arrays, and need neither torch nor verl.

A sample that cannot be trained on raises InvalidArgument with its name and the reason. Token ids are the recorded ones;
none is made up, and none is computed from text.
"""

from osmosis_grpc.export.trainable import Row, Skipped
from osmosis_grpc.export.verl_batch import PaddedBatch, padded_batch
from osmosis_grpc.export.verl_records import VerlRecord, verl_records
from osmosis_grpc.export.verl_rows import VerlConfig, agent_loop_outputs

__all__ = [
    "PaddedBatch",
    "Row",
    "Skipped",
    "VerlConfig",
    "VerlRecord",
    "agent_loop_outputs",
    "padded_batch",
    "verl_records",
]
