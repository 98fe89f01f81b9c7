"""Converts outcomes to the formats of trainers and tools.

export() writes a file or a folder: messages, atif, parquet, verl, verl-batch or verl-records. For verl,
agent_loop_outputs() returns the fields of AgentLoopOutput, padded_batch() the padded batch, and verl_records() the
records of the V1 trainer's TransferQueue, all as NumPy arrays, without torch or verl. atif_trajectory() returns a
trajectory of ATIF v1.7, and message_lines() OpenAI messages.

The formats for training are parquet and those of verl. They raise InvalidArgument for a sample that cannot be trained
on, with its name and the reason, unless it is to be skipped. All token ids were recorded; none is computed from text.
"""

from osmosis_grpc.protocol.types.trainable import Row, Skipped
from osmosis_grpc.records.export.atif import atif_trajectory
from osmosis_grpc.records.export.files import Export, ExportCounts, ExportOptions, export
from osmosis_grpc.records.export.json_lines import message_lines
from osmosis_grpc.records.export.recorded import RecordedRollout
from osmosis_grpc.records.export.verl_batch import PaddedBatch, padded_batch
from osmosis_grpc.records.export.verl_files import load_batch, load_outputs
from osmosis_grpc.records.export.verl_records import VerlRecord, verl_records
from osmosis_grpc.records.export.verl_rows import VerlConfig, agent_loop_outputs

__all__ = [
    "Export",
    "ExportCounts",
    "ExportOptions",
    "PaddedBatch",
    "RecordedRollout",
    "Row",
    "Skipped",
    "VerlConfig",
    "VerlRecord",
    "agent_loop_outputs",
    "atif_trajectory",
    "export",
    "load_batch",
    "load_outputs",
    "message_lines",
    "padded_batch",
    "verl_records",
]
