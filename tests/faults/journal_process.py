"""Writes rollouts into a journal and drops them, until it is killed: python -m tests.faults.journal_process DIR.

Nine in ten are delivered and dropped after 50 ms, with what the file gives back; one in ten is never delivered. Says
`open NAME` once such a one is committed, to its last event.
"""

import asyncio
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

from osmosis_grpc.protocol.types import (
    EventKind,
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

LOGGED = 5
LASTING = 10
"""One of so many rollouts is never delivered."""


async def main(folder: str) -> None:
    store = SqliteJournal(Path(folder), record_ttl=0.05)
    store.unsettled()

    def committed(tokens: Any, ok: bool) -> None:
        assert ok, store.problem
        for name in filter(None, tokens):
            os.write(1, f"open {name}\n".encode())

    store.on_commit = committed
    for number in itertools.count(store.last_sequence + 1):
        name, now = f"j{number}", time.time()
        init = InitRequest(request=RolloutRequest(rollout_id=name, messages=[]), digest=b"d")
        ended = RolloutOutcome(rollout_id=name, status=OutcomeStatus.COMPLETED, result_id=name)
        middle = [events.Logged("step", {"text": "x" * 500, "number": step}) for step in range(LOGGED)]
        kinds: list[EventKind] = [events.Accepted(init, ()), *middle, events.Ended(ended)]
        lasts = not number % LASTING
        if not lasts:
            kinds.append(events.Delivered(Receipt.RECORDED, "", 1))
        entry = JournaledRollout(
            init=init, tools=[], owner="", attachment_id="p", sequence=number, agent_loop="a", accept_time=now
        )
        for at, kind in enumerate(kinds, 1):
            received = name if lasts and at == len(kinds) else ""
            store.append(TrajectoryEvent(name, 1, at, now, kind), 0, received, entry if at == 1 else None)
        if not number % 5:
            await asyncio.sleep(0.002)  # the next transaction
            store.sweep()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
