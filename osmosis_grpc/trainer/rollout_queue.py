"""Rollouts that wait for a server, in order of arrival, one queue for each agent loop."""

from collections import deque
from collections.abc import Callable

from osmosis_grpc.trainer.agent_server_state import Rollout


class RolloutQueue:
    """The rollouts of one trainer that no server has."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[Rollout]] = {}

    def add(self, rollout: Rollout, *, first: bool = False) -> None:
        """Add a rollout at the end of its queue, or with `first` at the start."""
        queue = self._queues.setdefault(rollout.request.agent_loop, deque())
        (queue.appendleft if first else queue.append)(rollout)

    def remove(self, rollout: Rollout) -> None:
        """Remove a rollout if it is queued."""
        queue = self._queues.get(rollout.request.agent_loop)
        if queue is not None and rollout in queue:
            queue.remove(rollout)

    def send(self, sent: Callable[[Rollout], bool]) -> None:
        """Call `sent` with each rollout, and remove the rollout if `sent` returns True.

        A rollout with an affinity key waits for certain servers, and so does a fork. If `sent` returns False for any
        other rollout, no server has a free slot for its agent loop. Then send() skips the rest of this queue.
        """
        for agent_loop, queue in list(self._queues.items()):
            unsent: list[Rollout] = []
            while queue:
                rollout = queue.popleft()
                if rollout.done.done() or sent(rollout):
                    continue
                unsent.append(rollout)
                if not (rollout.affinity_key or rollout.request.fork):
                    break
            queue.extendleft(reversed(unsent))
            if not queue:
                del self._queues[agent_loop]
