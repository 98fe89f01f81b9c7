"""Chooses which rollout is sent next, and to which agent server."""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping

from osmosis_grpc.trainer.agent_server_link import AgentServerLink, Rollout
from osmosis_grpc.trainer.annotate import RecentServers
from osmosis_grpc.trainer.server_availability import Servers

MAX_AFFINITY_KEYS = 16_384
"""The servers of this many affinity keys are remembered. The key that was used longest ago is forgotten first."""


class Placement:
    """Chooses the server with the most free slots. Affinity keys keep their servers, forks go to their original."""

    def __init__(self, servers: Servers, rollouts: Mapping[str, Rollout], recent_servers: RecentServers) -> None:
        self.recent_servers = recent_servers
        self._servers = servers
        self._rollouts = rollouts
        self._by_affinity_key: OrderedDict[str, set[AgentServerLink]] = OrderedDict()
        """The servers that got rollouts with an affinity key, by the key."""

    def server_for(self, rollout: Rollout) -> AgentServerLink | None:
        """Return the server with the most free slots; None if no suitable server has one.

        Suitable servers host the rollout's agent loop. If some of them already got rollouts with the same affinity key
        and are not draining, only these are suitable.

        A fork goes to the server of its original if that is known. Otherwise the servers are tried one by one until one
        has the original.
        """
        fork = rollout.request.fork
        original = self._server_of(fork.rollout_id) if fork is not None else None
        if original is not None and original not in rollout.without_original:
            return original if original.attached and original.free > 0 else None
        hosts = self._hosts(rollout)
        if not hosts and self._all_usable:
            # No server hosts the agent loop. Send the rollout to any server: it will refuse it with an error that names
            # its agent loops.
            hosts = self._servers.usable
        if rollout.affinity_key:
            chosen = self._by_affinity_key.get(rollout.affinity_key, ())
            hosts = [server for server in hosts if server in chosen and server.window] or hosts
        best = max(hosts, key=lambda server: server.free, default=None)
        return best if best is not None and best.free > 0 else None

    def may_go_elsewhere(self, rollout: Rollout) -> bool:
        """Return whether another server may have the original of a fork."""
        return bool(self._hosts(rollout)) or not self._all_usable

    def add(self, rollout: Rollout, server: AgentServerLink) -> None:
        """Record that a server gets a rollout. Later rollouts with the same affinity key go to the same server."""
        key = rollout.affinity_key
        if not key:
            return
        self._by_affinity_key.setdefault(key, set()).add(server)
        self._by_affinity_key.move_to_end(key)
        if len(self._by_affinity_key) > MAX_AFFINITY_KEYS:
            self._by_affinity_key.popitem(last=False)

    def leave(self, server: AgentServerLink) -> None:
        """Forget the affinity keys of a lost server, so that their groups continue elsewhere."""
        for servers in self._by_affinity_key.values():
            servers.discard(server)

    @property
    def _all_usable(self) -> bool:
        return len(self._servers.usable) == len(self._servers.named)

    def _hosts(self, rollout: Rollout) -> list[AgentServerLink]:
        """Return the usable servers that host a rollout's agent loop, without those that lack a fork's original."""
        usable, lacking = self._servers.usable, rollout.without_original
        return [server for server in usable if server.hosts(rollout.request.agent_loop) and server not in lacking]

    def _server_of(self, rollout_id: str) -> AgentServerLink | None:
        running = self._rollouts.get(rollout_id)
        known = running.server if running is not None else self.recent_servers.get(rollout_id)
        return known if known is not None and known in self._servers.named else None


class RolloutQueue:
    """The rollouts of one trainer that wait for a server, in order of arrival. Each agent loop has its own queue."""

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

        A fork, or a rollout with an affinity key, may wait for certain servers. If `sent` returns False for any other
        rollout, no server has a free slot for its agent loop, so skip the rest of this queue.
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
