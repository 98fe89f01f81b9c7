"""The errors that the product logs during a run are in its history, and nowhere else."""

import logging

from tests.simulation.error_log import errors_recorded
from tests.simulation.history import History
from tests.simulation.world import quiet


def test_an_error_is_recorded_once_and_not_printed(caplog, tmp_path):
    history = History(lambda: 0.0)
    log = logging.getLogger("osmosis_grpc.engine.outbox")
    with quiet():
        with errors_recorded(history, tmp_path):
            log.warning("not recorded")
            scheduler = logging.getLogger("osmosis_grpc.trainer.scheduler")
            scheduler.info("rollout %s runs again as attempt %d: %s", "r1", 2, "its server is lost")
            scheduler.warning("not recorded, either")
            log.error("the outcome of rollout %s is lost", "r1")
            log.error("%s cannot be written", tmp_path / "server-1" / "journal.db")
            try:
                raise ValueError("its reason")
            except ValueError:
                log.exception("a job failed")
        log.error("after the run")
    (again,) = [r for r in history if r.op == "runs again"]
    assert (again.rollout, again.attempt, again["why"]) == ("r1", 2, "its server is lost")
    records = [(r.op, r["message"], r["text"]) for r in history if r.op == "logged"]
    assert records == [
        ("logged", "the outcome of rollout %s is lost", "the outcome of rollout r1 is lost"),
        ("logged", "%s cannot be written", "server-1/journal.db cannot be written"),
        ("logged", "a job failed", "a job failed: ValueError('its reason')"),
    ]
    assert not caplog.records
