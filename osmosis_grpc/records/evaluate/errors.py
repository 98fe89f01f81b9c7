"""The errors of datasets, models and runs. Each text is one line that says what is wrong and what to do."""

from osmosis_grpc.protocol.errors import OsmosisRolloutError


class DatasetError(OsmosisRolloutError):
    """A dataset cannot be read, or a row is not usable. The text begins with the place: FILE:LINE:COLUMN."""

    def __init__(self, path: str, problem: str, line: int = 0, column: int = 0, field: str = "") -> None:
        self.path = path
        self.line = line
        """The line in the file, from 1. In a Parquet file, the number of the row, from 1. 0 if it is unknown."""
        self.column = column
        """The character in the line, from 1; 0 if it is unknown."""
        self.field = field
        """The name of the dataset's column; empty if the problem is not in one column."""
        place = ":".join([path, *(str(number) for number in (line, column) if number)])
        super().__init__(f"{place}: {field}: {problem}" if field else f"{place}: {problem}")


class ModelError(OsmosisRolloutError):
    """A model cannot be used: its name, its key or its server is wrong."""


class RunError(OsmosisRolloutError):
    """A run folder cannot be used."""


class EvalFunctionError(OsmosisRolloutError):
    """An eval function is wrong, or a call of it has failed."""
