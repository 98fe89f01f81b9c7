"""Writes outcomes as Parquet: `rollouts.parquet` with a row for each rollout, `segments.parquet` for each segment.

The files are written in small row groups as outcomes arrive, so memory is bounded. Needs the extra `parquet` (pyarrow).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from osmosis_grpc.protocol.errors import InvalidArgument, MissingExtraError
from osmosis_grpc.protocol.types import Extra, Extras, RaggedTensor, RolloutOutcome
from osmosis_grpc.protocol.types.trainable import Selection, TrainableSegment
from osmosis_grpc.records.export.recorded import RecordedRollout

GROUP_ROWS = 1000
"""The most rows of a row group."""
GROUP_BYTES = 32 * 1024 * 1024
"""A row group is written when it has about this many bytes."""
ROLLOUTS, SEGMENTS = "rollouts.parquet", "segments.parquet"


class ParquetExport:
    """Writes the two files into a folder. Use it with `with`: the files are complete at the end."""

    def __init__(self, folder: Path, selection: Selection) -> None:
        """Open the files. Raises MissingExtraError if pyarrow is not installed."""
        self.selection = selection
        rollouts, segments = _schemas()
        self._rollouts = _Table(folder / ROLLOUTS, rollouts)
        self._segments = _Table(folder / SEGMENTS, segments)

    def __enter__(self) -> "ParquetExport":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        for table in (self._rollouts, self._segments):
            table.close(complete=kind is None)

    def add(self, rollout: RecordedRollout) -> None:
        """Write a rollout. Raises InvalidArgument with its id and the reason if it cannot be trained on."""
        found = self.selection.of(rollout.outcome)
        for each in found:
            self._segments.add(_segment_row(each), each.segment.nbytes)
        row = _rollout_row(rollout, found)
        self._rollouts.add(row, len(row["messages"]) + 500)

    def counts(self) -> tuple[int, int, int]:
        """Return the number of segments, of skipped outcomes and samples together, and 0, because none is truncated."""
        return self.selection.segments, self.selection.skipped, 0


class _Table:
    """A file, and the buffered rows of its next row group."""

    def __init__(self, path: Path, schema: Any) -> None:
        from pyarrow.parquet import ParquetWriter

        self._schema = schema
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0
        self._file = path.open("wb")  # pyarrow refuses a path that is not UTF-8
        self._writer = ParquetWriter(self._file, schema, compression="zstd")

    def add(self, row: dict[str, Any], size: int) -> None:
        self._rows.append(row)
        self._bytes += size
        if len(self._rows) >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._flush()

    def close(self, *, complete: bool) -> None:
        try:
            if complete and self._rows:
                self._flush()
        finally:
            with self._file:
                self._writer.close()

    def _flush(self) -> None:
        import pyarrow

        columns = {name: [row[name] for row in self._rows] for name in self._schema.names}
        self._writer.write_table(pyarrow.table(columns, schema=self._schema))
        self._rows, self._bytes = [], 0


def _schemas() -> tuple[Any, Any]:
    """Return the schemas of rollouts and segments. Raises MissingExtraError if pyarrow is not installed."""
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtraError("Parquet", "parquet") from None
    text, number, integer = pa.string(), pa.float64(), pa.int64()
    named = pa.list_(pa.struct({"name": text, "value": number}))
    ids, floats = pa.list_(pa.uint32()), pa.list_(pa.float32())
    extra = {"name": text, "rows": text, "dtype": text, "shape": pa.list_(integer), "data": pa.binary(), "offsets": ids}
    key = {"rollout_id": text, "attempt": pa.int32(), "group_id": text, "group_index": pa.int32()}
    rollouts = key | {
        "group_size": pa.int32(),
        "agent_loop": text,
        "agent_version": text,
        "status": text,
        "finish_reason": text,
        "failure_boundary": text,
        "failure_reason": text,
        "failure_message": text,
        "reward": number,
        "reward_components": named,
        "evaluation": pa.bool_(),
        "trainable": pa.bool_(),
        "not_trainable_reason": text,
        "cut": text,
        "segments": pa.int32(),
        "tokens": integer,
        "sampled_tokens": integer,
        "forked_from": text,
        "forked_sample": text,
        "forked_chat": pa.int32(),
        "messages": text,
        "label": text,
        "metadata": text,
        "extra_fields": text,
        "accept_time": pa.timestamp("us", "UTC"),
        "end_time": pa.timestamp("us", "UTC"),
        **dict.fromkeys(_METRICS, number),
    }
    segments = key | {
        "sample": text,
        "segment": pa.int32(),
        "policy": text,
        "reward": number,
        "weight": pa.float32(),
        "prompt_tokens": pa.int32(),
        "ids": ids,
        "mask": pa.list_(pa.bool_()),
        "logprobs": floats,
        "versions": pa.list_(pa.struct({"version": text, "tokens": pa.int32()})),
        "chats": ids,
        "drift_index": integer,
        "split": text,
        "cut": text,
        "dropped": pa.bool_(),
        "extras": pa.list_(pa.struct(extra)),
        "incomplete_extras": pa.list_(text),
    }
    return pa.schema(list(rollouts.items())), pa.schema(list(segments.items()))


_METRICS = (
    "total_latency_ms",
    "llm_latency_ms",
    "tool_latency_ms",
    "num_llm_calls",
    "num_tool_calls",
    "prompt_tokens",
    "response_tokens",
    "max_context_tokens",
    "queue_time",
    "model_time",
    "tool_time",
    "overhead_time",
)


def _key(outcome: RolloutOutcome) -> dict[str, Any]:
    group = outcome.group
    return {
        "rollout_id": outcome.rollout_id,
        "attempt": outcome.attempt,
        "group_id": None if group is None else group.id,
        "group_index": None if group is None else group.index,
    }


def _rollout_row(rollout: RecordedRollout, found: list[TrainableSegment]) -> dict[str, Any]:
    outcome, failure = rollout.outcome, rollout.outcome.failure
    times = {"accept_time": rollout.accept_time, "end_time": rollout.end_time}
    return {
        **_key(outcome),
        "group_size": None if outcome.group is None else outcome.group.size,
        "agent_loop": rollout.agent_loop or None,
        "agent_version": outcome.agent_version or None,
        "status": str(outcome.status),
        "finish_reason": outcome.finish_reason or None,
        "failure_boundary": None if failure is None else str(failure.boundary),
        "failure_reason": None if failure is None else str(failure.reason) or None,
        "failure_message": None if failure is None else failure.message,
        "reward": outcome.reward,
        "reward_components": [{"name": name, "value": value} for name, value in outcome.reward_components.items()],
        "evaluation": outcome.evaluation,
        "trainable": bool(found),
        "not_trainable_reason": outcome.not_trainable_reason or None,
        "cut": next((sample.cut for sample in outcome.samples.values() if sample.cut), None),
        "segments": len(found),
        "tokens": sum(len(each.segment.ids) for each in found),
        "sampled_tokens": sum(each.segment.sampled for each in found),
        "forked_from": None if rollout.fork is None else rollout.fork.rollout_id,
        "forked_sample": None if rollout.fork is None else rollout.fork.sample,
        "forked_chat": None if rollout.fork is None else rollout.fork.chat_number,
        "messages": _json({name: list(sample.messages) for name, sample in outcome.samples.items()}),
        "label": rollout.label,
        "metadata": _json(dict(rollout.metadata)),
        "extra_fields": _json(dict(outcome.extra_fields)),
        **{name: None if value is None else round(value * 1e6) for name, value in times.items()},
        **{name: float(getattr(outcome.metrics, name)) for name in _METRICS},
    }


def _segment_row(each: TrainableSegment) -> dict[str, Any]:
    segment, row = each.segment, each.row
    extras = [*_extras("tokens", segment.token_extras), *_extras("sampled", segment.sampled_extras)]
    mask = segment.mask()
    return {
        **_key(each.outcome),
        "sample": row.sample,
        "segment": row.segment,
        "policy": row.policy or None,
        "reward": each.reward,
        "weight": each.weight,
        "prompt_tokens": int(np.argmax(each.sampled)) if each.sampled.any() else len(mask),
        "ids": segment.ids,
        "mask": mask,
        "logprobs": segment.aligned_logprobs(),
        "versions": [{"version": span.version, "tokens": span.tokens} for span in segment.versions],
        "chats": list(segment.chats),
        "drift_index": segment.drift_index,
        "split": segment.split,
        "cut": row.cut or None,
        "dropped": row.dropped,
        "extras": extras,
        "incomplete_extras": list(segment.incomplete_extras),
    }


def _extras(rows: str, extras: Extras) -> list[dict[str, Any]]:
    return [{"name": name, "rows": rows, **_tensor(extra)} for name, extra in extras.items()]


def _tensor(extra: Extra) -> dict[str, Any]:
    if isinstance(extra, RaggedTensor):
        values, offsets = extra.values, extra.offsets
        return {"dtype": values.dtype, "shape": list(values.shape), "data": values.data, "offsets": offsets}
    return {"dtype": extra.dtype, "shape": list(extra.shape), "data": extra.data, "offsets": None}


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgument("outcomes", f"a value is not JSON: {error}") from None
