"""What follows a commit, for each rollout of it by itself."""

from types import SimpleNamespace

from osmosis_grpc.engine.eventlog import EventLog
from osmosis_grpc.engine.record import Trail
from osmosis_grpc.protocol.types import TrajectoryEvent, events
from osmosis_grpc.storage import MemoryJournal
from osmosis_grpc.supervise import Supervisor


def test_one_rollouts_trouble_keeps_no_other_of_its_transaction_waiting(caplog):
    supervisor = Supervisor("the test")
    journal, committed = MemoryJournal(), []
    EventLog(journal, (), 15.0, supervisor)
    records = [SimpleNamespace(rollout_id=name, trail=Trail()) for name in "ab"]

    def fail(record):
        raise RuntimeError("trouble")

    event = TrajectoryEvent("x", 1, 1, 0.0, events.Started())
    journal.on_commit([(records[0], event, fail), (records[1], event, committed.append)], True)
    assert committed == [records[1]]
    assert [record.trail.last_event_number for record in records] == [1, 1]
    assert "trouble" in caplog.text
    assert supervisor.failures["engine.committed"] == 1
