"""A trainer that is not ours: it calls Init and Cancel of the servers directly, in orders that our trainer avoids.

It cancels a rollout before it starts it, repeats an Init, and sends the Init of a lower attempt after that of a higher
one. Often the server is killed a moment after its answer. The agents ask for no chats, and some ignore cancels. It
answers Complete as the protocol says. The oracles of Init, Cancel and Complete judge the answers that it gets.
"""

import asyncio
from typing import TYPE_CHECKING, Any

import grpc

from osmosis_grpc.network.handlers import Registrar
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2, outcome_pb2, rollout_pb2
from osmosis_grpc.protocol.types import Callback, InitRequest, RolloutRequest
from osmosis_grpc.protocol.wire.rollout import init_to_wire
from tests.simulation.network import ProcessNetwork
from tests.simulation.processes import Process
from tests.simulation.taps import ROLLOUT_SERVICE, TRAINER_SERVICE

if TYPE_CHECKING:
    from tests.simulation.programs import ServerProgram
    from tests.simulation.world import World

ORDERS = (("cancel", 1), (2, 1), (1, 1, 1), (1, "cancel", 1), (1, 2, 1), (1, 2, "cancel", 2))
"""The calls for one rollout: Inits by their attempt, and cancels of all attempts."""
ROLLOUTS = 6
PORT = 60_051
FINAL = (grpc.StatusCode.ABORTED, grpc.StatusCode.ALREADY_EXISTS)
"""The statuses after which an Init is not repeated. After any other one it is."""


class ForeignTrainer:
    """One process that no fault meets."""

    def __init__(self, world: "World", host: str) -> None:
        self._world = world
        self._host = host
        self._process = Process(world.loop, world.network, "foreign-trainer", host)
        self._draw = world.randomness("foreign trainer")
        self._newest: dict[str, tuple[int, str]] = {}
        """The newest attempt of each rollout, and the id of its result."""
        self.unfinished = ROLLOUTS
        """How many rollouts have calls left."""
        world.processes.append(self._process)

    def start(self) -> None:
        """Begins to call."""
        self._process.start(self._run())

    async def _run(self) -> None:
        network = ProcessNetwork()
        server = network.server()
        methods = {"Complete": grpc.unary_unary_rpc_method_handler(self._complete)}
        service = TRAINER_SERVICE.strip("/")
        Registrar(server).add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, methods)])
        network.listen(server, f"{self._host}:{PORT}", None)
        await server.start()
        await asyncio.gather(*(self._play(f"foreign-r{number}") for number in range(1, ROLLOUTS + 1)))

    async def _play(self, name: str) -> None:
        draw = self._draw
        program: ServerProgram = draw.choice(self._world.servers)
        channel = ProcessNetwork().channel(program.address, None, None)
        script = {"chats": 0, "rest": draw.choice((0.0, 0.3, 3.0)), "wild": "ignore" if draw.random() < 0.2 else None}
        agent = draw.choice(("passenger", "traveller"))
        crashes = draw.random() < 0.5
        await asyncio.sleep(draw.random() * self._world.plan.faults_until)  # the clock is simulated
        for step in draw.choice(ORDERS):
            if step == "cancel":
                request: Any = control_pb2.CancelRequest(rollout_id=name)
                await self._ask(channel, "Cancel", request)
            else:
                self._newest[name] = max(self._newest.get(name, (0, "")), (step, ""))
                await self._ask(channel, "Init", self._init(name, step, agent, script))
            if crashes and draw.random() < 0.5:
                self._world.later(draw.random() * 0.02, lambda: self._crash(program))
            await asyncio.sleep(draw.expovariate(1 / 1.0))  # the clock is simulated
        self.unfinished -= 1
        self._world.changed.set()

    def _crash(self, program: "ServerProgram") -> None:
        if not self._world.calm and program.alive and program.durable:
            program.kill("after an answer")
            self._world.later(self._draw.uniform(0.1, 2.0), program.start)

    def _init(self, name: str, attempt: int, agent: str, script: dict[str, Any]) -> rollout_pb2.InitRequest:
        messages = [{"role": "user", "content": f"question of {name}"}]
        request = RolloutRequest(rollout_id=name, attempt=attempt, agent_loop=agent, messages=messages, metadata=script)
        return init_to_wire(InitRequest(request=request, callback=Callback(target=f"{self._host}:{PORT}")))

    async def _ask(self, channel: Any, method: str, request: Any) -> None:
        """Calls a method until it has an answer. Network faults break calls before and after their effect."""
        while True:
            try:
                await channel.unary_unary(ROLLOUT_SERVICE + method)(request.SerializeToString(), timeout=10.0)
                return
            except grpc.aio.AioRpcError as error:
                if error.code() in FINAL:
                    return
                if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                    raise
            await asyncio.sleep(self._draw.uniform(0.05, 1.0))  # the clock is simulated

    async def _complete(self, data: bytes, context: Any) -> bytes:
        outcome = outcome_pb2.CompleteRequest.FromString(data).outcome
        newest, result = self._newest.get(outcome.rollout_id, (0, ""))
        if outcome.attempt < newest:
            await context.abort(grpc.StatusCode.ABORTED, f"rollout {outcome.rollout_id} is at attempt {newest}")
        known = result if outcome.attempt == newest else ""
        if not known:
            self._newest[outcome.rollout_id] = outcome.attempt, outcome.result_id
            receipt = outcome_pb2.RECEIPT_RECORDED
        elif known == outcome.result_id:
            receipt = outcome_pb2.RECEIPT_ALREADY_RECORDED
        else:
            receipt = outcome_pb2.RECEIPT_CONFLICT
        return outcome_pb2.CompleteResponse(receipt=receipt).SerializeToString()
