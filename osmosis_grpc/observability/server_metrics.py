"""All metrics of an agent server: process, calls, engine and journal."""

from collections.abc import Callable, Iterator

from osmosis_grpc.engine import Engine
from osmosis_grpc.observability.metric_families import Family, Reading, Source, Summary, single
from osmosis_grpc.observability.process_metrics import ProcessMetrics, failures
from osmosis_grpc.observability.rollout_metrics import EngineMetrics
from osmosis_grpc.observability.rpc_metrics import Calls

ATTACHMENTS = Family("osmosis_attachments", "gauge", "Trainers that are attached.")
DRAINING = Family("osmosis_draining", "gauge", "1 while the server drains, else 0.")
JOURNAL_BYTES = Family("osmosis_journal_bytes", "gauge", "Bytes of the journal's file and of its write-ahead log.")
JOURNAL_BUDGET = Family("osmosis_journal_budget_bytes", "gauge", "The most bytes that the journal may use.")
JOURNAL_COMMITS = Family("osmosis_journal_commit_seconds", "summary", "Transactions committed, and the time they took.")
JOURNAL_FAILING = Family("osmosis_journal_failing", "gauge", "1 while the journal cannot be written, else 0.")


class ServerMetrics:
    """The metrics of one agent server. `attached` returns the number of attached trainers."""

    def __init__(self, engine: Engine, *, attached: Callable[[], int] = int) -> None:
        self.answered, self.made = Calls("server"), Calls("client")
        """The calls that the server answers, and the calls that it makes."""
        self._engine = engine
        self._attached = attached
        self._parts: tuple[Source, ...] = (ProcessMetrics(), EngineMetrics(engine), self.answered, self.made)

    def read(self) -> Iterator[Reading]:
        """See Source."""
        for part in self._parts:
            yield from part.read()
        yield failures(self._engine.supervisor.failures)
        yield single(ATTACHMENTS, self._attached())
        yield single(DRAINING, float(self._engine.shutdown.draining))
        figures = self._engine.journal.figures()
        yield JOURNAL_BYTES, [] if figures is None else [((), figures.bytes)]
        yield JOURNAL_BUDGET, [] if figures is None else [((), figures.budget)]
        yield JOURNAL_COMMITS, [] if figures is None else [((), Summary(figures.commits, figures.commit_seconds))]
        yield JOURNAL_FAILING, [] if figures is None else [((), float(bool(self._engine.journal.problem)))]
