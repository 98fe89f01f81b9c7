"""Exports outcomes to a file or a folder, in a format chosen by name."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO, get_args
from urllib.parse import quote

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import RolloutOutcome
from osmosis_grpc.protocol.types.trainable import Outcomes, check_choice
from osmosis_grpc.records.export.atif import atif_trajectory
from osmosis_grpc.records.export.destination import Destination
from osmosis_grpc.records.export.json_lines import json_line, message_lines
from osmosis_grpc.records.export.parquet import ParquetExport
from osmosis_grpc.records.export.recorded import RecordedRollout, recorded
from osmosis_grpc.records.export.verl_files import DEFAULT_BATCH, BatchFiles, output_lines, record_lines
from osmosis_grpc.records.export.verl_records import VerlRecords
from osmosis_grpc.records.export.verl_rows import VerlConfig, VerlRows

Format = Literal["messages", "atif", "parquet", "verl", "verl-batch", "verl-records"]
"""The formats. The verl formats, and the segments of parquet, contain only trainable samples."""

STDOUT = "-"
MAX_FILE_NAME = 200
"""The most characters of a rollout's id in the name of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """The options of all formats. Each format uses some of them."""

    verl: VerlConfig = VerlConfig()
    """The limits, what to do with untrainable samples (also for Parquet), and which extras to include."""
    pad_id: int | None = None
    """The tokenizer's pad_token_id, for verl-batch."""
    batch_size: int = DEFAULT_BATCH
    """The rows of a padded batch, for verl-batch."""
    global_steps: int | None = None
    """The trainer's step, for verl-records."""
    tokens: bool = True
    """Whether ATIF contains token ids and logprobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportCounts:
    """What an export has written."""

    rollouts: int
    rows: int
    """The number of lines, trajectories or segments."""
    skipped: int
    """The number of rollouts, samples and segments that were left out on request."""
    truncated: int = 0
    """The number of responses that were truncated on request."""


class Sink(Protocol):
    """Writes rollouts in one format."""

    def add(self, rollout: RecordedRollout) -> None:
        """Write a rollout. Raises InvalidArgument with its id and the reason if the format cannot express it."""

    def counts(self) -> tuple[int, int, int]:
        """Return how many rows were written, how many were skipped, and how many were truncated."""


class _Lines:
    """Writes lines of JSON. A rollout that yields no line counts as skipped."""

    def __init__(self, file: TextIO, lines: Callable[[RecordedRollout], Iterable[Any]], rows: VerlRows | None) -> None:
        self._file, self._lines, self._verl = file, lines, rows
        self._ascii = file is sys.stdout
        self._rows = self._skipped = 0

    def add(self, rollout: RecordedRollout) -> None:
        before = self._rows
        for line in self._lines(rollout):
            self._file.write(json_line(line, ascii_only=self._ascii))
            self._rows += 1
        self._skipped += self._rows == before

    def counts(self) -> tuple[int, int, int]:
        return (self._rows, self._skipped, 0) if self._verl is None else self._verl.counts()


class _Trajectories:
    """Writes one ATIF file for each rollout into a folder. A rollout without messages counts as skipped."""

    def __init__(self, folder: Path, tokens: bool) -> None:
        self._folder, self._tokens = folder, tokens
        self._rows = self._skipped = 0

    def add(self, rollout: RecordedRollout) -> None:
        for made in _trajectories(rollout, self._tokens):
            name = file_name(rollout.outcome.rollout_id, rollout.outcome.attempt)
            (self._folder / name).write_text(json_line(made), encoding="utf-8")
            self._rows += 1
            return
        self._skipped += 1

    def counts(self) -> tuple[int, int, int]:
        return self._rows, self._skipped, 0


def _trajectories(rollout: RecordedRollout, tokens: bool) -> Iterator[dict[str, Any]]:
    if rollout.messages or any(sample.messages for sample in rollout.outcome.samples.values()):
        yield atif_trajectory(rollout, tokens=tokens)


def _open(to: Format, destination: Destination, options: ExportOptions, stack: ExitStack) -> Sink:
    verl = options.verl
    if to == "parquet":
        return stack.enter_context(ParquetExport(destination.working, verl.selection()))
    if to == "verl-batch":
        if options.pad_id is None:
            raise InvalidArgument("pad_id", "a padded batch needs it; it is the tokenizer's pad_token_id")
        batches = BatchFiles(destination.working, verl, options.pad_id, options.batch_size)
        stack.push(lambda kind, *_: batches.close() if kind is None else None)
        return batches
    if to == "atif" and destination.folder:
        return _Trajectories(destination.working, options.tokens)
    if to == "atif":
        return _Lines(destination.file, partial(_trajectories, tokens=options.tokens), None)
    if to == "messages":
        return _Lines(destination.file, message_lines, None)
    if to == "verl":
        rows = VerlRows(verl)
        return _Lines(destination.file, partial(output_lines, rows), rows)
    if options.global_steps is None:
        raise InvalidArgument("global_steps", "the records of verl's V1 trainer need it; it is the trainer's step")
    records = VerlRecords(verl, options.global_steps)
    return _Lines(destination.file, partial(record_lines, records), records.rows)


class Export:
    """Writes rollouts in one format, one after the other. Use it with `with`: the output is complete at the end.

    Args:
        output: A file, a folder for parquet, verl-batch and atif, or "-" for stdout. ATIF in a file whose name ends
            with .jsonl, or on stdout, has a line for each rollout.
        to: The format.
        options: The options of the format.
        overwrite: Whether to replace an output that exists.

    Raises:
        InvalidArgument: An argument is invalid; the message names it.
    """

    def __init__(
        self, output: str | Path, to: Format, options: ExportOptions | None = None, *, overwrite: bool = False
    ) -> None:
        check_choice("to", to, get_args(Format))
        lines = str(output) == STDOUT or str(output).endswith(".jsonl")
        folder = to in ("parquet", "verl-batch") or (to == "atif" and not lines)
        if folder and str(output) == STDOUT:
            raise InvalidArgument("output", f"{to} is a folder, so it cannot be written to stdout; name a folder")
        self.to, self._options = to, options or ExportOptions()
        self._destination = Destination(Path(output), folder=folder, overwrite=overwrite, stdout=str(output) == STDOUT)
        self._stack = ExitStack()
        self._rollouts = 0

    def __enter__(self) -> "Export":
        with ExitStack() as stack:
            stack.enter_context(self._destination)
            self._sink = _open(self.to, self._destination, self._options, stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: Any) -> None:
        counts = self.counts
        self._destination.manifest = {"format": self.to, "rollouts": counts.rollouts, "skipped": counts.skipped}
        self._stack.__exit__(kind, *exc)

    def add(self, rollout: RecordedRollout | RolloutOutcome) -> None:
        """Write a rollout. Raises InvalidArgument with its id and the reason if the format cannot express it."""
        self._sink.add(rollout if isinstance(rollout, RecordedRollout) else RecordedRollout(outcome=rollout))
        self._rollouts += 1

    @property
    def counts(self) -> ExportCounts:
        """What was written so far."""
        rows, skipped, truncated = self._sink.counts()
        return ExportCounts(rollouts=self._rollouts, rows=rows, skipped=skipped, truncated=truncated)


def export(
    rollouts: Outcomes | Iterable[RecordedRollout],
    output: str | Path,
    to: Format,
    options: ExportOptions | None = None,
    *,
    overwrite: bool = False,
) -> ExportCounts:
    """Write outcomes to a file or a folder, and return the counts. The output appears only when it is complete.

    Args:
        rollouts: The outcomes, or groups, or recorded rollouts.
        output: As in Export.
        to: As in Export.
        options: As in Export.
        overwrite: As in Export.

    Raises:
        InvalidArgument: The format cannot express an outcome, or the output exists.
        MissingExtraError: Parquet needs pyarrow.
    """
    with Export(output, to, options, overwrite=overwrite) as made:
        for rollout in recorded(rollouts):
            made.add(rollout)
    return made.counts


def file_name(rollout_id: str, attempt: int) -> str:
    """Return the name of a rollout's file. Special characters are percent-encoded."""
    name = quote(rollout_id, safe=" ")
    if len(name) > MAX_FILE_NAME or name.startswith("."):
        name = f"{name[:MAX_FILE_NAME].replace('.', '%2E')}-{sha256(rollout_id.encode()).hexdigest()[:12]}"
    return f"{name}.json" if attempt == 1 else f"{name}-attempt{attempt}.json"
