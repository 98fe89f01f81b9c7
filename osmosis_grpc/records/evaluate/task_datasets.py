"""Reads the tasks of an environment, or of a folder in Harbor's format, as the rows of a dataset."""

from collections.abc import Iterator
from pathlib import Path

from osmosis_grpc.environments.loading import open_environment
from osmosis_grpc.environments.tasks import task_rows
from osmosis_grpc.records.evaluate.errors import DatasetError
from osmosis_grpc.records.evaluate.formats import Raw


def read_tasks(path: Path) -> Iterator[Raw]:
    """Yield a row for each task of a folder in Harbor's format."""
    from osmosis_grpc.tools.tasks.harbor_task import rows

    try:
        for number, row in enumerate(rows(path)):
            yield Raw(row, number + 1)
    except ValueError as error:
        raise DatasetError(str(path), str(error).removeprefix(f"{path}: ")) from None


def read_environment(text: str) -> Iterator[Raw]:
    """Yield a row for each task of the environment named env:KIND:NAME."""
    try:
        for number, row in enumerate(task_rows(open_environment(text))):
            yield Raw(row, number + 1)
    except ValueError as error:
        raise DatasetError(text, str(error)) from None
