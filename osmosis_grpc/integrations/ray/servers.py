"""Places agent servers on a Ray cluster, one in each bundle of a placement group.

Ray chooses the nodes, restarts a server that has ended, and moves a server whose node has died. An autoscaler, if the
cluster has one, adds nodes for bundles without one.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osmosis_grpc.integrations.ray.actor import RayAgentServer
from osmosis_grpc.integrations.ray.targets import NAMESPACE, RayTargets, actor_name, connect, imported

STOPPING = 10.0
"""How many seconds beyond its drain limit a server may take to stop."""


class RayProblem(Exception):
    """Ray cannot start the servers. The message says why."""


@dataclass(frozen=True, slots=True)
class RayPlan:
    """What Ray starts."""

    name: str
    servers: int | None
    """None for one on each node."""
    resources: Mapping[str, float]
    """What each server reserves, such as {"CPU": 1}."""
    host: str
    """The address at which each server listens; empty for the IP address of its node."""
    folder: str
    """The working folder of the servers, on nodes where it exists."""
    state: str
    """The state folder, with a subfolder for each server and node; empty for no journals."""
    environment: Mapping[str, str]


class RayServers:
    """The agent servers of one `serve --ray`. Connects to the cluster. Raises RayProblem, MissingExtraError."""

    def __init__(self, plan: RayPlan) -> None:
        self._ray = imported("serve --ray")
        self._plan = plan
        try:
            self.started_cluster = connect(self._ray, start=True)
        except ConnectionError as error:
            raise RayProblem(f"the Ray cluster cannot be reached: {error}") from None
        self._group: Any = None
        self._actors: list[Any] = []
        self._targets = RayTargets(plan.name)
        self.count = plan.servers or sum(node["Alive"] for node in self._ray.nodes())

    @property
    def hosts(self) -> list[str]:
        """The IP addresses of the nodes."""
        return sorted({node["NodeManagerAddress"] for node in self._ray.nodes() if node["Alive"]})

    def reserve(self) -> None:
        """Ask Ray for the bundles. Raises RayProblem if the name is in use."""
        try:
            self._ray.get_actor(actor_name(self._plan.name, 0), namespace=NAMESPACE)
        except ValueError:
            pass
        else:
            raise RayProblem(
                f"--ray-name {self._plan.name} is in use in this cluster: stop those servers, or give a name"
            )
        groups = importlib.import_module("ray.util.placement_group")
        self._group = groups.placement_group([dict(self._plan.resources)] * self.count, strategy="SPREAD")

    def reserved(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the bundles. Returns whether Ray has them."""
        return bool(self._group.wait(timeout))

    def start(self, arguments: Sequence[Sequence[str]]) -> None:
        """Start a server in each bundle, with its own arguments. Raises RayProblem if one does not start."""
        ray, plan = self._ray, self._plan
        strategy = importlib.import_module("ray.util.scheduling_strategies").PlacementGroupSchedulingStrategy
        kinds = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
        reserves: dict[str, Any] = {kinds[name]: plan.resources[name] for name in kinds if name in plan.resources}
        others = {name: amount for name, amount in plan.resources.items() if name not in kinds}
        make = ray.remote(RayAgentServer)
        for number, own in enumerate(arguments):
            options = {
                "name": actor_name(plan.name, number),
                "namespace": NAMESPACE,
                "max_restarts": -1,
                "num_cpus": 0,
                "resources": others,
                "scheduling_strategy": strategy(self._group, placement_group_bundle_index=number),
            }
            state = f"{plan.state}/{plan.name}-{number}" if plan.state else ""
            actor = make.options(**options | reserves)
            self._actors.append(actor.remote(list(own), plan.host, plan.folder, state, dict(plan.environment)))
        try:
            ray.get([actor.where.remote() for actor in self._actors])
        except ray.exceptions.RayError as error:
            cause = str(error).strip().splitlines()[-1]
            raise RayProblem(f"a server does not start: {cause}") from None

    def addresses(self) -> list[str]:
        """Return the HOST:PORT of each current server."""
        return self._targets.now()

    def stop(self, limit: float) -> None:
        """Shut all servers down cleanly, within `limit` + STOPPING seconds, and free the bundles."""
        ray = self._ray
        stopping = [actor.stop.remote() for actor in self._actors]
        if stopping:
            ray.wait(stopping, num_returns=len(stopping), timeout=limit + STOPPING)
        for actor in self._actors:
            ray.kill(actor, no_restart=True)
        if self._group is not None:
            importlib.import_module("ray.util.placement_group").remove_placement_group(self._group)
        ray.shutdown()
