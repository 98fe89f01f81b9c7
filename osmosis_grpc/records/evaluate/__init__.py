"""Runs an agent over a dataset, with a model of the user's choice, in this process."""

from osmosis_grpc.records.evaluate.dataset import Dataset, Row
from osmosis_grpc.records.evaluate.errors import DatasetError, ModelError, RunError
from osmosis_grpc.records.evaluate.models import Model, open_model
from osmosis_grpc.records.evaluate.recorded_replies import RecordedReplies
from osmosis_grpc.records.evaluate.results import RowResult, Summary
from osmosis_grpc.records.evaluate.run import Run, RunConfig
from osmosis_grpc.records.evaluate.run_folder import RunFolder

__all__ = [
    "Dataset",
    "DatasetError",
    "Model",
    "ModelError",
    "RecordedReplies",
    "Row",
    "RowResult",
    "Run",
    "RunConfig",
    "RunError",
    "RunFolder",
    "Summary",
    "open_model",
]
