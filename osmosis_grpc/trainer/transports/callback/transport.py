"""The callback transport: the trainer calls agent servers and answers their callbacks.

A server with several workers counts as one server here: the trainer calls its first worker, which forwards calls.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from osmosis_grpc.network.bearer_tokens import CallbackKeys
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2, outcome_pb2
from osmosis_grpc.protocol.errors import Aborted, CallError
from osmosis_grpc.protocol.types import AbandonReason, Callback, ChatRequest, Receipt
from osmosis_grpc.protocol.wire.control import OUTCOME_BY_REFERENCE
from osmosis_grpc.trainer.agent_server_link import Report
from osmosis_grpc.trainer.target_sources import Target
from osmosis_grpc.trainer.transports.callback.link import CalledServer
from osmosis_grpc.trainer.transports.callback.listener import CallbackListener, Receiver
from osmosis_grpc.trainer.transports.transport import Dialled, Transport

LOCAL = "127.0.0.1:0"


class CallbackTransport(Transport[CalledServer], Receiver):
    """Calls the agent servers of one trainer and answers their callbacks."""

    def listen(self) -> None:
        ledger, tokens = self._scheduler.ledger, self._security.tokens
        system = self._scheduler.supervisor.system
        run_id = ledger.callback_id("run") if ledger is not None else system.new_id()
        if tokens:
            keys = tokens.callbacks
        else:
            keys = CallbackKeys([ledger.callback_id("secret") if ledger is not None else system.new_secret()])
        self._chat_slots = asyncio.Semaphore(self._config.max_open_chats)
        self._listener = CallbackListener(self, self.address or LOCAL, self._security, keys, run_id, self._network)
        calls = self._scheduler.cache.metrics.answered_calls
        self._listener.listen(calls, system.new_id, self._config.max_connection_age)
        self.address = self._listener.address

    def _link(self, target: Target, server_key: str) -> CalledServer:
        return CalledServer(
            target.address,
            self._scheduler,
            server_key=server_key,
            credentials=self._credentials_for(target),
            make_callback=self._callback,
            network=self._network,
            config=self._config,
        )

    async def begin(self) -> None:
        await self._listener.start()
        await super().begin()

    async def close(self) -> None:
        await super().close()
        await self._listener.stop()

    async def _connect(self, server: Dialled[CalledServer], on_answer: Callable[[], None]) -> None:
        servers, link = self._scheduler.servers, server.link
        link.credentials = self._credentials_for(server.target)

        def reached() -> None:
            on_answer()
            servers.arrived(link)
            self._scheduler.changed()

        await link.stay_connected(reached, partial(servers.left, link))

    def _callback(self, rollout_id: str, features: frozenset[str]) -> Callback:
        return self._listener.callback(
            rollout_id=rollout_id,
            target=self._config.callback_target,
            server_name=self._config.callback_server_name,
            delta=self._config.delta,
            outcome_by_reference=OUTCOME_BY_REFERENCE in features,
        )

    # Calls of the agent servers.

    async def chat(self, request: ChatRequest) -> bytes:
        """Answer a chat. Waits while the trainer is paused. Raises NotFound for a rollout of another trainer."""
        cache = self._scheduler.cache
        cache.check_known(request.rollout_id)
        async with self._chat_slots:
            await self._scheduler.servers.running.wait()
            try:
                return await cache.answer(request)
            except Aborted as error:  # the server ends the attempt without an outcome
                self._scheduler.superseded(request.rollout_id, request.attempt, error.attempt)
                raise

    def abandon(self, request: chat_pb2.AbandonChatRequest) -> None:
        self._scheduler.cache.abandon(request.rollout_id, request.attempt, request.sample, request.chat_number)
        if request.reason == AbandonReason.SUPERSEDED:
            self._scheduler.superseded(request.rollout_id, request.attempt)

    async def complete(self, raw: outcome_pb2.RolloutOutcome, state: bytes, credential: str) -> Receipt:
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()

        def reply(receipt: Receipt | CallError) -> None:
            if future.done():  # the server's call has ended
                return
            if isinstance(receipt, CallError):
                future.set_exception(receipt)
            else:
                future.set_result(receipt)

        rollout = self._scheduler.rollouts.get(raw.rollout_id)
        server = rollout.server if rollout is not None else None
        self._scheduler.take_outcome(Report(server, raw, reply))
        return await future
