"""EngineContext: the configuration, the services and the state that the parts of one engine share.

The parts that act on rollouts (runner, outbox, shutdown) are not in the context. If one of them calls another, it gets
that one as a parameter.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from weakref import WeakValueDictionary

from osmosis_grpc.agent.ports import EventSink
from osmosis_grpc.agent.runnable import Runnable
from osmosis_grpc.engine.admission import Admission
from osmosis_grpc.engine.config import EngineConfig
from osmosis_grpc.engine.eventlog import EventLog
from osmosis_grpc.engine.find_earlier_run import EarlierRuns
from osmosis_grpc.engine.journal_port import Journal
from osmosis_grpc.engine.record import Record, Tenant
from osmosis_grpc.engine.record_table import RecordTable
from osmosis_grpc.engine.tombstones import Tombstones
from osmosis_grpc.engine.unreachable_trainers import Destinations
from osmosis_grpc.supervise import Supervisor
from osmosis_grpc.supervise.throttled_log import Throttled


class EngineContext:
    """The configuration, the services and the state that the parts of one engine share."""

    def __init__(
        self,
        runnables: Mapping[str, Runnable],
        config: EngineConfig,
        journal: Journal,
        sinks: Sequence[EventSink],
        supervisor: Supervisor,
    ) -> None:
        self.runnables = runnables
        self.config = config
        self.journal = journal
        self.supervisor = supervisor
        self.system = system = supervisor.system
        self.log = EventLog(journal, sinks, config.idle_interval, supervisor)
        self.table = RecordTable(config, journal, system)
        self.tombstones = Tombstones(config, journal, system)
        self.admission = Admission(
            config.max_concurrent,
            config.queue_limit,
            config.max_concurrent_per_owner,
            {name: most for name, agent in runnables.items() if (most := getattr(agent, "max_concurrent", None))},
        )
        self.destinations = Destinations()
        self.failed_chats = Throttled(logging.getLogger("osmosis_grpc.engine.chat_calls"), system.monotonic)
        """Logs the failures of chats that are retried. It is throttled, because all chats fail while a trainer or its
        model is away."""
        self.earlier_runs = EarlierRuns(runnables, journal, system)
        self.stage_sinks: list[Callable[[Record], object]] = []
        """Called when an agent or its grader starts."""
        self.on_ended: Callable[[Record], None] = lambda record: None
        """Called after the end of a rollout is committed. Set by the engine."""
        self.on_delivered: Callable[[Record], None] = lambda record: None
        """Called after the delivery of a rollout is committed. Set by the engine."""
        self.on_parked: Callable[[Record], None] = lambda record: None
        """Called when the agent of a parked rollout has stopped. Set by the engine."""
        self.blocked_at: Callable[[str], str] = lambda task: ""
        """Returns where the task with this name last blocked the event loop. Set by the engine."""
        self._tenants: WeakValueDictionary[str, Tenant] = WeakValueDictionary()

    def tell_stage(self, record: Record) -> None:
        """Report that the agent or the grader of a rollout starts."""
        for sink in self.stage_sinks:
            sink(record)

    def callback_tenant(self, owner: str) -> Tenant:
        """Return the tenant that all callbacks of an owner share."""
        return self._tenants.get(owner) or self._tenants.setdefault(owner, Tenant())
