"""The outcomes that a TrainerServer holds until its application takes them, and the calls that wait for them.

An outcome may be taken by name, as one of all, or by RolloutClient.wait() in the same process. What nobody takes is
bounded: beyond MAX_HELD a server is asked to keep its outcomes for a while. With a ledger they stay on its disk.
"""

import asyncio
import logging
import time
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable

from osmosis_grpc.errors import Internal, TrainerFailed, Unavailable
from osmosis_grpc.trainer.unconfirmed import UnconfirmedOutcomes
from osmosis_grpc.types import Completion

log = logging.getLogger(__name__)

MAX_HELD = 16_384
"""Outcomes in memory that nobody has taken."""
MAX_REMEMBERED = 4096
"""Outcomes that were taken, or refused, and are kept for a call that asks for one by name; the oldest goes first."""
FULL_RETRY = 5.0
"""Seconds after which a server may report again an outcome that found no room."""
_WARN_EVERY = 60.0

_open: "weakref.WeakSet[Inbox]" = weakref.WeakSet()


class Inbox:
    """One trainer's, from open() to close().

    `counts` is called with each outcome that is handed out; `expects` tells whether a rollout's outcome is to come.
    """

    def __init__(self, counts: Callable[[Completion], None], expects: Callable[[str], bool]) -> None:
        self.held: UnconfirmedOutcomes | None = None
        """What the ledger holds; None without one."""
        self._counts = counts
        self._expects = expects
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outcomes: dict[str, Completion] = {}
        self._taken: OrderedDict[str, Completion] = OrderedDict()
        self._refused: OrderedDict[str, Exception] = OrderedDict()
        self._read_early: OrderedDict[str, None] = OrderedDict()
        """Result ids of outcomes that RolloutClient.wait() has returned and that have not come here yet."""
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._arrived = asyncio.Event()
        self._warned = 0.0
        self._failure: TrainerFailed | None = None
        self._closed = False

    def open(self, held: UnconfirmedOutcomes | None) -> None:
        """Begin, on the running event loop."""
        self.held = held
        self._loop = asyncio.get_running_loop()
        _open.add(self)

    def check_room(self, rollout_id: str) -> None:
        """Raise Unavailable if there is no room for the outcome of this rollout."""
        if len(self._outcomes) < MAX_HELD or rollout_id in self._waiting or rollout_id in self._outcomes:
            return
        problem = f"{len(self._outcomes)} outcomes wait to be taken with completion() or completions()"
        if time.monotonic() - self._warned > _WARN_EVERY:
            self._warned = time.monotonic()
            log.warning("%s; agent servers keep the others", problem)
        raise Unavailable(problem, retry_after=FULL_RETRY)

    def put(self, completion: Completion) -> None:
        """Hold an outcome until it is taken."""
        rollout_id = completion.rollout_id
        self._taken.pop(rollout_id, None)
        self._refused.pop(rollout_id, None)
        if completion.result_id in self._read_early:
            del self._read_early[completion.result_id]
            self._remember(completion)
        elif self.held is not None and len(self._outcomes) >= MAX_HELD:
            self.held.left[rollout_id] = None
        else:
            self._outcomes[rollout_id] = completion
        self._wake(rollout_id)

    def came_again(self, completion: Completion) -> None:
        """Keep an outcome that was taken before for a call that asks for it by name: an Init may have asked again."""
        if completion.rollout_id not in self._outcomes:
            self._remember(completion)
            self._wake(completion.rollout_id)

    def refuse(self, rollout_id: str, problem: Exception) -> None:
        """The outcome of a rollout was refused for good: its server sends no other one."""
        self._refused[rollout_id] = Internal(f"the outcome of rollout {rollout_id}: {problem}")
        if len(self._refused) > MAX_REMEMBERED:
            self._refused.popitem(last=False)
        self._wake(rollout_id)

    def read_elsewhere(self, completion: Completion) -> None:
        """RolloutClient.wait() has returned this outcome."""
        kept = self._outcomes.get(completion.rollout_id)
        if kept is not None and kept.result_id == completion.result_id:
            if completion.rollout_id not in self._waiting:
                self._remember(self._outcomes.pop(completion.rollout_id))
        elif self._expects(completion.rollout_id):
            self._read_early[completion.result_id] = None
            if len(self._read_early) > MAX_REMEMBERED:
                self._read_early.popitem(last=False)

    async def take(self, rollout_id: str, attempt: int, timeout: float | None) -> Completion:
        """See TrainerServer.completion()."""
        arrived, mine = asyncio.Event(), False
        waiting = self._waiting.setdefault(rollout_id, set())
        waiting.add(arrived)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    kept = self._outcomes.get(rollout_id)
                    if kept is not None and kept.attempt >= attempt:
                        mine = True
                        return kept
                    if self.held is not None and self.held.holds(rollout_id, attempt or 1):
                        return self._hand_out(await self.held.fetch(rollout_id))
                    again = self._taken.get(rollout_id)
                    if again is not None and again.attempt >= attempt:
                        return self._hand_out(self._taken.pop(rollout_id))
                    if rollout_id in self._refused:
                        raise self._refused[rollout_id]
                    self._check_open()
                    arrived.clear()
                    await arrived.wait()
        finally:
            waiting.discard(arrived)
            if not waiting:
                self._waiting.pop(rollout_id, None)
                self._refused.pop(rollout_id, None)
                if mine:
                    self._hand_out(self._outcomes.pop(rollout_id))
                self._arrived.set()  # what no call waits for any more is for all()

    async def all(self) -> AsyncIterator[Completion]:
        """See TrainerServer.completions()."""
        while True:
            held = self.held
            while held and (left := next((name for name in held.waiting() if name not in self._waiting), "")):
                yield self._hand_out(await held.fetch(left))
            while free := next((name for name in self._outcomes if name not in self._waiting), ""):
                yield self._hand_out(self._outcomes.pop(free))
            if self._closed:
                return
            self._check_open()
            self._arrived.clear()
            await self._arrived.wait()

    async def settle(self, limit: float) -> None:
        """Wait for the outcomes that RolloutClient.wait() has returned already: their server waits for an answer."""
        try:
            async with asyncio.timeout(limit):
                while self._read_early:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            pass

    def fail(self, failure: TrainerFailed) -> None:
        """End every call that waits, and each later one, with this error."""
        self._failure = failure
        self._wake_all()

    def close(self) -> None:
        """End every call that waits."""
        self._closed = True
        _open.discard(self)
        self._wake_all()

    def is_on(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Returns whether this is the loop that it was opened on."""
        return self._loop is loop

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise RuntimeError("the trainer is closed: nothing more comes")

    def _hand_out(self, completion: Completion) -> Completion:
        self._counts(completion)
        return completion

    def _remember(self, completion: Completion) -> None:
        self._taken[completion.rollout_id] = completion
        if len(self._taken) > MAX_REMEMBERED:
            self._taken.popitem(last=False)

    def _wake(self, rollout_id: str) -> None:
        for arrived in (*self._waiting.get(rollout_id, ()), self._arrived):
            arrived.set()

    def _wake_all(self) -> None:
        for waiting in self._waiting.values():
            for arrived in waiting:
                arrived.set()
        self._arrived.set()


def read_elsewhere(completion: Completion) -> None:
    """RolloutClient.wait() has returned this outcome: the trainers of this event loop need not hold it."""
    loop = asyncio.get_running_loop()
    for inbox in list(_open):
        if inbox.is_on(loop):
            inbox.read_elsewhere(completion)
