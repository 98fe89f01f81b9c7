"""Uses a journal in a folder as an engine does, and collects its reports."""

import asyncio
from contextlib import asynccontextmanager

from osmosis_grpc.protocol.types import (
    Callback,
    InitRequest,
    JournaledRollout,
    OutcomeStatus,
    Receipt,
    RolloutOutcome,
    RolloutRequest,
    TrajectoryEvent,
    events,
)
from osmosis_grpc.storage import SqliteJournal
from osmosis_grpc.supervise import Supervisor, System
from tests.waiting import until

PATIENCE = 20.0


class JournalUser:
    """Appends as an engine does: numbers count from 1 in each rollout, tokens count from 1."""

    def __init__(self, folder, *, monotonic=None, **options):
        system = System()
        if monotonic is not None:
            system.monotonic = monotonic
        self.journal = SqliteJournal(folder, **{"supervisor": Supervisor("the journal", system=system), **options})
        self.journal.on_commit = self._committed
        self.reported = []
        """(token, ok) in the order of the reports."""
        self.numbers = {}
        self.written = {}
        """The kinds appended, by rollout."""
        self.tokens = 0

    def _committed(self, tokens, ok):
        self.reported += [(token, ok) for token in tokens]

    def accept(self, rollout_id="r1", attempt=1, *, owner="me", callback=None, attachment_id="", digest=b"d", **fields):
        fields = {"messages": []} | fields
        request = RolloutRequest(rollout_id=rollout_id, attempt=attempt, **fields)
        init = InitRequest(request=request, callback=callback, digest=digest)
        entry = JournaledRollout(
            init=init,
            tools=[],
            owner=owner,
            attachment_id=attachment_id,
            sequence=self.journal.last_sequence + 1,
            agent_loop="agent",
            accept_time=1000.0 + self.tokens,
        )
        self.append(events.Accepted(init), rollout_id, attempt, entry=entry)
        return entry

    def append(self, kind, rollout_id="r1", attempt=1, *, entry=None, time=2000.0):
        key = rollout_id, attempt
        if entry is not None:
            self.numbers[key] = 0
        self.numbers[key] = number = self.numbers.get(key, 0) + 1
        self.tokens += 1
        event = TrajectoryEvent(rollout_id, attempt, number, time, kind)
        assert self.journal.append(event, 0, self.tokens, entry) is False
        self.written.setdefault(key, []).append(kind)
        return self.tokens

    def end(self, rollout_id="r1", attempt=1, *, time=2000.0, **outcome):
        outcome = {"status": OutcomeStatus.COMPLETED, "finish_reason": "stop", "result_id": "x"} | outcome
        kind = events.Ended(RolloutOutcome(rollout_id=rollout_id, attempt=attempt, **outcome))
        return self.append(kind, rollout_id, attempt, time=time)

    def deliver(self, rollout_id="r1", attempt=1):
        return self.append(events.Delivered(Receipt.RECORDED, tries=1), rollout_id, attempt)

    async def until(self, condition):
        await until(condition)

    async def all_reported(self):
        """Wait until each appended event is committed or has failed."""
        await self.until(lambda: len(self.reported) == self.tokens)

    async def commit(self):
        """Wait until every write is on the disk, also those without a report."""
        await self.all_reported()
        await self.until(lambda: self.journal.writer.idle)

    def everything(self, limit=1000, owner="me"):
        """Return all events of an owner, with their positions."""
        found, position = [], 0
        while position < self.journal.last_position:
            batch, position = self.journal.all_events(owner, position, limit)
            found += batch
        return found

    def kinds(self, rollout_id="r1", attempt=1):
        return [event.kind for event in self.trajectory(rollout_id, attempt)]

    def trajectory(self, rollout_id="r1", attempt=1):
        found = []
        while batch := self.journal.events(rollout_id, attempt, len(found), 100):
            found += batch
        return found


@asynccontextmanager
async def opened(folder, **options):
    """A journal that is open inside the block."""
    user = JournalUser(folder, **options)
    try:
        yield user
    finally:
        user.journal.close()
        await asyncio.sleep(0)


SECRETS = ("credential-of-the-callback", "state-of-the-callback", "key-of-the-trainer", "http://server-of-the-trainer")
CALLBACK = Callback(target="127.0.0.1:9", credential=SECRETS[0], state=SECRETS[1].encode(), delta=True)
OWN = {"api_key": SECRETS[2], "server_url": SECRETS[3]}
