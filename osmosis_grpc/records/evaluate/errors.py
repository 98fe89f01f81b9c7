"""The errors of datasets, models and runs. Each message is one line that says what is wrong and what to do."""

from osmosis_grpc.protocol.errors import OsmosisRolloutError


class DatasetError(OsmosisRolloutError):
    """A dataset cannot be read, or a row is invalid. The message begins with the place: FILE:LINE:COLUMN."""

    def __init__(self, path: str, problem: str, line: int = 0, column: int = 0, field: str = "") -> None:
        self.path = path
        self.line = line
        """The line or, in a Parquet file, the row, from 1; 0 if it is unknown."""
        self.column = column
        """The character in the line, from 1; 0 if it is unknown."""
        self.field = field
        """The column of the dataset that is wrong; empty if it is not a single one."""
        place = ":".join([path, *(str(number) for number in (line, column) if number)])
        super().__init__(f"{place}: {field}: {problem}" if field else f"{place}: {problem}")


class ModelError(OsmosisRolloutError):
    """A model cannot be used, because of its name, its key or its server."""


class RunError(OsmosisRolloutError):
    """A run folder cannot be used."""


class EvalFunctionError(OsmosisRolloutError):
    """An eval function is invalid, or a call of it has failed."""
