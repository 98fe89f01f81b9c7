"""What the coverage of a history counts, and what it says was never met."""

from tests.simulation.coverage import KNOWN, Coverage
from tests.simulation.history import History


def test_a_history_is_counted_by_states_transitions_and_faults():
    history = History(lambda: 0.0)
    history.note("trainer-1", "submitted", "r1", 1, agent="traveller", plan=())
    call = history.call("trainer-1", "server-1", "Init", "r1", 1)
    history.answer("trainer-1", call, "Init", "r1", 1, "OK", (True,))
    history.note("server-1", "run", "r1", 1, agent="traveller", run=1)
    history.note("server-1", "asked", "r1", 1, sample="main", chat=1, run=1)
    history.note("server-1", "crash", where="any time")
    history.note("server-1", "run", "r1", 1, agent="traveller", run=2)
    coverage = Coverage()
    coverage.add(history)
    assert coverage.counts["answer to Init"] == {"OK created": 1}
    assert coverage.counts["run of an agent"] == {"first": 1, "again in the same attempt": 1}
    assert coverage.counts["fault"] == {"crash while chat open": 1}
    assert set(coverage.counts["transition"]) == {
        "asked for > sent",
        "sent > accepted",
        "accepted > running",
        "running > chat open",
        "chat open > running",
    }
    assert "cut while running" in coverage.missing("fault")
    assert f"fault: 1 of {len(KNOWN['fault'])}" in coverage.report()
    assert "never: OK found" in coverage.report()
