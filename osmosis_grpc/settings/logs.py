"""Writes the log of the commands to stderr: readable text on a terminal, JSON otherwise.

A thread formats and writes the records, so that a slow stderr never blocks the event loop. At most 10,000 records wait;
further records are dropped and counted.
"""

import contextlib
import json
import logging
import os
import queue
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.supervise import OnFailure, job, thread

WRITE = job("console.write_log", OnFailure.RESTART, "thread")

WAITING = 10_000
"""The most records that wait in the queue."""
LAST_LINES = 2.0
"""At the end, the process waits at most this many seconds for the thread to write the queued records."""
QUIET = ("asyncio", "grpc", "httpx", "httpx2", "mcp")
"""Loggers whose debug and info lines are never logged, because these are not about rollouts.

Lines of the last three contain URLs with passwords.
"""
CHATTER = ("uvicorn", "uvicorn.error", "uvicorn.access", "aiohttp")
"""Loggers of the HTTP libraries. Their info lines are logged only at the level debug."""


class BackgroundHandler(logging.Handler):
    """Queues records for a thread that formats them and writes them to a file descriptor."""

    def __init__(self, descriptor: int, waiting: int = WAITING) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._waiting = waiting
        self._queue: queue.SimpleQueue[logging.LogRecord | threading.Event] = queue.SimpleQueue()
        self._dropped = 0
        self.dropped = 0
        """The number of records dropped since the start."""
        self._thread = thread(WRITE, self._run)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record. Its message is formatted now, because the arguments of the message may change later."""
        try:
            record.msg, record.args = record.getMessage(), None
            if not self._thread.is_alive():  # after a fork, or at the end
                self._write([record])
            elif self._queue.qsize() >= self._waiting:
                self._dropped += 1
                self.dropped += 1
            else:
                self._queue.put(record)
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Wait until the queued records are written, but at most LAST_LINES seconds."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            written = threading.Event()
            self._queue.put(written)
            written.wait(LAST_LINES)

    def _run(self) -> bool:
        """Wait for queued records, and write them. Runs on the thread."""
        batch: list[logging.LogRecord | threading.Event] = [self._queue.get()]
        with contextlib.suppress(queue.Empty):
            while len(batch) < 256:
                batch.append(self._queue.get_nowait())
        dropped, self._dropped = self._dropped, 0
        self._write([record for record in batch if isinstance(record, logging.LogRecord)])
        if dropped:
            text = f"{dropped} log lines were dropped: stderr takes them too slowly"
            self._write([logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None)])
        for written in batch:
            if isinstance(written, threading.Event):
                written.set()
        return True

    def _write(self, records: list[logging.LogRecord]) -> None:
        lines = []
        for record in records:
            try:
                lines.append(self.format(record) + "\n")
            except Exception as error:  # a bad record must not stop the log
                lines.append(f"a log record of {record.name} cannot be formatted: {type(error).__name__}\n")
        data = memoryview("".join(lines).encode("utf-8", "backslashreplace"))
        with contextlib.suppress(OSError):  # stderr is closed, so no error can be reported
            while data:
                data = data[os.write(self._descriptor, data) :]


@contextlib.contextmanager
def configured(level: str, worker: int | None = None) -> Iterator[None]:
    """Send the standard library's logging to stderr, and flush it at the end. `worker` is a field of each line."""
    handler = BackgroundHandler(sys.stderr.fileno())
    if worker is not None:
        handler.addFilter(_Numbered(worker))
    handler.setFormatter(_formatter(sys.stderr.isatty()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in QUIET if root.level <= logging.DEBUG else (*QUIET, *CHATTER):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    try:
        yield
    finally:
        handler.flush()


class _Numbered(logging.Filter):
    """Adds the number of a worker to each record."""

    def __init__(self, worker: int) -> None:
        super().__init__()
        self._worker = worker

    def filter(self, record: logging.LogRecord) -> bool:
        record.worker = self._worker
        return True


class _JsonLines(logging.Formatter):
    """Formats a record as a line of JSON: event, level, logger, the fields of `extra`, timestamp, exception.

    Tracebacks are logged without local variables, because local variables may hold secrets.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {"event": record.getMessage(), "level": record.levelname.lower(), "logger": record.name}
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        line["timestamp"] = _when(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=repr)


_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""The attributes that every record has. All others are fields of `extra`."""


def _formatter(terminal: bool) -> logging.Formatter:
    """Return the formatter. Imports structlog only for a terminal: with Rich and Pygments, it takes 6 MB."""
    return _for_terminal() if terminal else _JsonLines()


def _for_terminal() -> logging.Formatter:
    import structlog

    renderer = structlog.dev.ConsoleRenderer(
        sort_keys=False, pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            _add_timestamp,
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,  # without local variables
            _readable,
            renderer,
        ],
    )


def _when(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")


def _add_timestamp(logger: Any, method: str, event: Any) -> Any:
    event["timestamp"] = _when(event["_record"])
    return event


def _readable(logger: Any, method: str, event: Any) -> Any:
    """Format a record for a terminal. Escape control characters, and indent lines that could look like a new record."""
    if str(event.get("logger", "")).startswith(("osmosis_grpc", "osmosis_gateway")):
        del event["logger"]
    event["timestamp"] = event["timestamp"][11:19]
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            lines = value.split("\n") if key in ("event", "exception") else [value]
            event[key] = "\n    ".join(map(printable, lines))
    return event
