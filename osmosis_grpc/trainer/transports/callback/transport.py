"""The callback transport: calls agent servers, and answers their callbacks."""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from osmosis_grpc._gen.osmosis.rollout.v1 import rollout_pb2
from osmosis_grpc.errors import CallError, InvalidArgument, NotFound
from osmosis_grpc.link.callback_credentials import CallbackKeys
from osmosis_grpc.link.credentials import Credentials
from osmosis_grpc.link.server_security import ServerSecurity
from osmosis_grpc.storage.ledger.ledger import LedgerRollout
from osmosis_grpc.trainer.agent_server_link import Report
from osmosis_grpc.trainer.chats.replies import reply_of
from osmosis_grpc.trainer.config import TrainerConfig
from osmosis_grpc.trainer.scheduler import Scheduler
from osmosis_grpc.trainer.transports.callback.link import CalledServer
from osmosis_grpc.trainer.transports.callback.listener import CallbackListener
from osmosis_grpc.trainer.transports.dialling import DIAL, TARGET, Dialler
from osmosis_grpc.types import Callback, ChatRequest, Completion, Outcome

LOCAL = "127.0.0.1:0"


class CallbackTransport:
    """The calls and callbacks of one trainer."""

    def __init__(
        self,
        scheduler: Scheduler,
        targets: Sequence[str],
        *,
        listen: str,
        credentials: Credentials,
        security: ServerSecurity,
        config: TrainerConfig,
    ) -> None:
        self._scheduler = scheduler
        self._targets = targets
        self._credentials = credentials
        self._config = config
        self._servers: list[CalledServer] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._chat_slots = asyncio.Semaphore(config.max_open_chats)
        self._dialler = Dialler(scheduler, credentials, config)
        ledger = scheduler.ledger
        run_id = ledger.callback_run() if ledger is not None else secrets.token_hex(16)
        if security.tokens:
            keys = security.tokens.callbacks
        else:
            keys = CallbackKeys([ledger.callback_secret() if ledger is not None else secrets.token_hex(32)])
        self._listener = CallbackListener(self, listen or LOCAL, security, keys, run_id)

    @property
    def address(self) -> str:
        """See Transport."""
        return self._listener.address

    def listen(self) -> None:
        """See Transport."""
        self._listener.listen(self._scheduler.cache.metrics.answered_calls)

    def add_servers(self, kept: Iterable[LedgerRollout]) -> None:
        """See Transport."""
        self._servers = [
            CalledServer(
                target,
                self._scheduler,
                server_key=f"{TARGET}{target}",
                credentials=self._credentials,
                make_callback=self._callback,
            )
            for target in self._targets
        ]
        self._scheduler.servers.add(*self._servers)

    async def begin(self) -> None:
        """See Transport."""
        await self._listener.start()
        supervisor = self._scheduler.supervisor
        self._tasks += [supervisor.start(DIAL, partial(self._connect, server)) for server in self._servers]

    def leave(self) -> None:
        """See Transport."""
        self._dialler.leaving = True

    async def close(self) -> None:
        """See Transport."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._listener.stop()

    async def _connect(self, server: CalledServer) -> None:
        servers = self._scheduler.servers

        async def connect(on_answer: Callable[[], None]) -> None:
            def reached() -> None:
                on_answer()
                servers.arrived(server)
                self._scheduler.changed()

            await server.stay_connected(reached, partial(servers.left, server))

        await self._dialler.keep_connected(server, connect)

    def _callback(self, rollout_id: str) -> Callback:
        return self._listener.callback(
            rollout_id=rollout_id,
            target=self._config.callback_target,
            server_name=self._config.callback_server_name,
            delta=self._config.delta,
        )

    # What agent servers call.

    async def chat(self, request: ChatRequest) -> bytes:
        """See Receiver. Raises NotFound for a rollout that was not started here. Waits while the trainer is paused."""
        cache = self._scheduler.cache
        if not cache.knows(request.rollout_id):
            raise NotFound(
                f"rollout {request.rollout_id} was not started here", kind="rollout", name=request.rollout_id
            )
        async with self._chat_slots:
            await self._scheduler.servers.running.wait()
            chat = cache.chat(request, time.monotonic())
            if not chat.done.done():
                await asyncio.wait({chat.done})
            chat.done.result()
            return reply_of(chat, request.continues)

    async def complete(
        self, completion: Completion, raw: rollout_pb2.Completion, state: bytes, credential: str
    ) -> Outcome:
        """See Receiver."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def reply(outcome: Outcome | CallError) -> None:
            if future.done():  # its call was cut
                return
            if isinstance(outcome, CallError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        rollout = self._scheduler.rollouts.get(completion.rollout_id)
        server = rollout.server if rollout is not None else None
        self._scheduler.completed(Report(server, completion, raw, reply))
        return await future

    def unreadable(self, rollout_id: str, problem: InvalidArgument) -> None:
        """See Receiver."""
        self._scheduler.unusable(None, rollout_id, 0, problem)
