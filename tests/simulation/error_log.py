"""Records the log lines of level ERROR that the product writes during a run, and the attempts that trainers begin."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.simulation.history import History
from tests.simulation.loop import CURRENT
from tests.simulation.processes import Process

LOGGER = "osmosis_grpc"
SCHEDULER = "osmosis_grpc.trainer.scheduler"
RUNS_AGAIN = "rollout %s runs again as attempt %d: %s"
MOST = 500
"""A longer text is cut to so many characters."""


class _Recorder(logging.Handler):
    """Writes a record for each line. `message` is the text of the code, before values are put in.

    Names of files under `folder` are shortened, since that folder has another name in each run.
    """

    def __init__(self, history: History, folder: Path) -> None:
        super().__init__()
        self._history = history
        self._prefix = f"{folder}/"

    def emit(self, record: logging.LogRecord) -> None:
        process = CURRENT.get()
        who = process.name if isinstance(process, Process) else "simulation"
        if record.msg == RUNS_AGAIN and isinstance(record.args, tuple):
            rollout, attempt, why = record.args
            self._history.note(who, "runs again", str(rollout), int(str(attempt)), why=str(why))
        if record.levelno < logging.ERROR:
            return
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        text = text.replace(self._prefix, "")
        self._history.note(who, "logged", message=str(record.msg), text=text[:MOST])


@contextmanager
def errors_recorded(history: History, folder: Path) -> Iterator[None]:
    """Records the errors that are logged meanwhile, and prints none of them."""
    logger, handler = logging.getLogger(LOGGER), _Recorder(history, folder)
    scheduler = logging.getLogger(SCHEDULER)
    level, propagate, of_scheduler = logger.level, logger.propagate, scheduler.level
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    scheduler.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        scheduler.setLevel(of_scheduler)
        logger.propagate = propagate
