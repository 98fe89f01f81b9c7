"""Writes and reads the files of verl's formats: lines of JSON, and padded batches as .npz files without pickles."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.trainable import Row
from osmosis_grpc.records.export.json_lines import json_line
from osmosis_grpc.records.export.recorded import RecordedRollout
from osmosis_grpc.records.export.verl_batch import PaddedBatch, check_lengths, pad_rows
from osmosis_grpc.records.export.verl_records import VerlRecords
from osmosis_grpc.records.export.verl_rows import ROUTED_EXPERTS, VerlConfig, VerlRow, VerlRows, object_array

DEFAULT_BATCH = 256
"""Rows of a padded batch."""
_BATCH, _COLUMN, _ABOUT = "batch.", "non_tensor.", "about"


def output_lines(rows: VerlRows, rollout: RecordedRollout) -> Iterator[dict[str, Any]]:
    """Yield a line for each AgentLoopOutput of a rollout, with its origin, its weight and its fields."""
    for row in rows.of(rollout.outcome):
        yield {**_origin(row), "output": row.fields()}


def record_lines(records: VerlRecords, rollout: RecordedRollout) -> Iterator[dict[str, Any]]:
    """Yield a line for each record of the V1 trainer: its key, partition, tags and fields."""
    for record in records.of(rollout.outcome):
        yield {"key": record.key, "partition": record.partition, "tags": record.tags, "fields": record.fields}


class BatchFiles:
    """Writes padded batches of `size` rows to a folder, as `batch-00000.npz` and so on. The last may be smaller."""

    def __init__(self, folder: Path, config: VerlConfig, pad_id: int, size: int = DEFAULT_BATCH) -> None:
        if size < 1:
            raise InvalidArgument("batch_size", f"{size} is less than 1")
        check_lengths(config)
        self.rows = VerlRows(config)
        self.files = 0
        """The number of files so far."""
        self._folder, self._config, self._pad_id, self._size = folder, config, pad_id, size
        self._waiting: list[VerlRow] = []

    def add(self, rollout: RecordedRollout) -> None:
        """Write a rollout, or buffer it for the next file. Raises InvalidArgument if verl cannot train on it."""
        self._waiting += self.rows.of(rollout.outcome)
        while len(self._waiting) >= self._size:
            self._write(self._waiting[: self._size])
            del self._waiting[: self._size]

    def counts(self) -> tuple[int, int, int]:
        """See VerlRows.counts()."""
        return self.rows.counts()

    def close(self) -> None:
        """Write the buffered rows."""
        if self._waiting:
            self._write(self._waiting)
            self._waiting = []

    def _write(self, rows: list[VerlRow]) -> None:
        save_batch(pad_rows(rows, self._config, pad_id=self._pad_id), self._folder / f"batch-{self.files:05}.npz")
        self.files += 1


def save_batch(batch: PaddedBatch, path: Path) -> None:
    """Write a padded batch to an .npz file, with objects as JSON. Raises InvalidArgument if an object is not JSON."""
    arrays = {_BATCH + name: value for name, value in batch.batch.items()}
    objects: dict[str, list[Any]] = {}
    for name, column in batch.non_tensor_batch.items():
        if column.dtype == object:
            objects[name] = column.tolist()
        else:
            arrays[_COLUMN + name] = column
    about = {
        "objects": objects,
        "columns": list(batch.non_tensor_batch),
        "meta_info": batch.meta_info,
        "rows": [asdict(row) for row in batch.rows],
        "pad_id": batch.pad_id,
        "skipped": batch.skipped,
    }
    text = np.frombuffer(json_line(about).encode(), dtype=np.uint8)
    with path.open("wb") as file:
        named: dict[str, Any] = arrays | {"weights": batch.weights, _ABOUT: text}
        np.savez_compressed(file, **named)


def load_batch(path: str | Path) -> PaddedBatch:
    """Read a padded batch from an .npz file that export wrote, without pickle.

    Raises InvalidArgument if the file has another content, and OSError if it cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(file[_ABOUT].tobytes())
            tensors = {name.removeprefix(_BATCH): file[name] for name in file.files if name.startswith(_BATCH)}
            columns = {name.removeprefix(_COLUMN): file[name] for name in file.files if name.startswith(_COLUMN)}
            columns |= {name: object_array(values) for name, values in about["objects"].items()}
            return PaddedBatch(
                batch=tensors,
                non_tensor_batch={name: columns[name] for name in about["columns"]},
                meta_info=about["meta_info"],
                rows=tuple(Row(**row) for row in about["rows"]),
                weights=file["weights"],
                pad_id=about["pad_id"],
                skipped=about["skipped"],
            )
    except (ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
        raise InvalidArgument("path", f"{path} is not a padded batch of export: {error}") from None


def load_outputs(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file of AgentLoopOutputs, for `AgentLoopOutput(**line["output"])`.

    Raises InvalidArgument if the file has another content, and OSError if it cannot be read.
    """
    with Path(path).open(encoding="utf-8") as file:
        for number, text in enumerate(file, 1):
            try:
                line = json.loads(text)
                output = line["output"]
                if ROUTED_EXPERTS in output:
                    output[ROUTED_EXPERTS] = np.array(output[ROUTED_EXPERTS], dtype=np.int16)
            except (ValueError, KeyError, TypeError) as error:
                raise InvalidArgument("path", f"{path}:{number} is not a line of export: {error}") from None
            yield line


def _origin(row: VerlRow) -> Mapping[str, Any]:
    source, at = row.source, row.source.row
    group = source.outcome.group
    return {
        "rollout_id": at.rollout_id,
        "attempt": source.outcome.attempt,
        "sample": at.sample,
        "segment": at.segment,
        "weight": source.weight,
        "group": None if group is None else {"id": group.id, "index": group.index},
    }
