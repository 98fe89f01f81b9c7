"""Runs an agent over a dataset, with a model of the user's choice, in this process."""

from osmosis_grpc.evaluate.dataset import Dataset, Row
from osmosis_grpc.evaluate.errors import DatasetError, ModelError, RunError

__all__ = ["Dataset", "DatasetError", "ModelError", "Row", "RunError"]
