"""The open chats of an agent server. The window is the number of chats that the server may have open.

An open chat belongs to a stream. If the stream breaks, the server sends the chat again on the next one. Then the cache
returns the kept reply, or waits for the policy call that still runs.
"""

import copy
from collections.abc import Callable
from functools import partial

from osmosis_grpc.network.frame_stream import FrameStream
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2
from osmosis_grpc.protocol.errors import Aborted, CallError, Internal, ResourceExhausted
from osmosis_grpc.protocol.types import AbandonReason
from osmosis_grpc.protocol.wire.attach import chat_reply_frame, trainer_frame
from osmosis_grpc.protocol.wire.chat import chat_from_wire
from osmosis_grpc.supervise import OnFailure, Supervisor, job
from osmosis_grpc.trainer.agent_server_link import RolloutKey
from osmosis_grpc.trainer.chats.attempt_cache import names
from osmosis_grpc.trainer.chats.policy_errors import ChatKey
from osmosis_grpc.trainer.chats.rollout_cache import RolloutCache
from osmosis_grpc.trainer.chats.sample_state import PendingChat

ANSWER = job("trainer.answer_chat", OnFailure.REPORT, "callback")

MAX_PARKED = 64
"""At most this many chats of a rollout wait for the answer to its Init. The server sends further chats again."""


class OpenChats:
    """The open chats of one agent server.

    `unopened` returns whether a rollout waits for the answer to its Init. `superseded` is called when an attempt was
    replaced, with the rollout's id, the attempt and the new attempt (0 if unknown).
    """

    def __init__(
        self,
        cache: RolloutCache,
        supervisor: Supervisor,
        *,
        unopened: Callable[[RolloutKey], bool],
        superseded: Callable[[str, int, int], None],
    ) -> None:
        self._cache = cache
        self._supervisor = supervisor
        self._unopened = unopened
        self._superseded = superseded
        self._stream: FrameStream | None = None
        self._granted = self._largest_granted = 0
        self._open: set[ChatKey] = set()
        self._parked: dict[RolloutKey, list[chat_pb2.ChatRequest]] = {}

    def take(self, stream: FrameStream, granted: int) -> None:
        """Use a new stream, on which the trainer's hello granted `granted` open chats."""
        self.leave()
        self._stream = stream
        self._granted = self._largest_granted = granted

    def leave(self) -> None:
        """Drop the open chats of a stream that has ended."""
        self._stream = None
        self._open.clear()
        self._parked.clear()

    def grant(self, window: int) -> None:
        """Set how many chats the server may have open."""
        if window != self._granted:
            self._granted = window
            self._largest_granted = max(window, self._largest_granted)
            if self._stream is not None:
                self._stream.send(trainer_frame("window", pb.TrainerWindow(max_open_chats=window)))

    def opened(self, key: RolloutKey) -> None:
        """Handle the chats that waited for the answer to a rollout's Init."""
        for chat in self._parked.pop(key, ()):
            self.on_chat(chat)

    def on_chat(self, message: chat_pb2.ChatRequest) -> None:
        """Answer a chat. Raises ResourceExhausted if the server exceeds the largest window granted on this stream."""
        key = (message.rollout_id, message.attempt, message.sample, message.chat_number)
        if key in self._open:
            return  # the server sent the chat twice on this stream and gets only one answer
        if self._unopened(key[:2]):  # the answer to the Init was lost, and the server sends it again
            waiting = self._parked.setdefault(key[:2], [])
            if len(waiting) < MAX_PARKED:
                waiting.append(copy.deepcopy(message))  # a copy, because the frame's memory is freed earlier
            return
        if len(self._open) >= self._granted:
            text = f"the window is {self._granted} open chats"
            error = ResourceExhausted(text, retry_after=0.5, reason="WINDOW_EXCEEDED")
            if len(self._open) >= self._largest_granted:
                raise error
            self._reply(key, error)
            return
        try:
            request = chat_from_wire(message, keep=self._cache.has_ledger)
            self._cache.check_known(request.rollout_id)
            asked = self._cache.chat(request, self._cache.now())
        except CallError as error:
            self._reply(key, error)
            return
        if asked.done.done():
            self._answer(key, asked, request.parent_chat)
            return
        self._open.add(key)
        call, stream, failed = self._supervisor.call, self._stream, partial(self._failed, self._stream)
        answer = partial(self._answered, stream, key, asked, request.parent_chat)
        asked.done.add_done_callback(lambda _: call(ANSWER, answer, report=failed))

    def on_abandon(self, message: chat_pb2.AbandonChatRequest) -> None:
        """Stop the policy calls of chats, and do not answer the chats."""
        rollout = message.rollout_id, message.attempt
        sample, number = message.sample, message.chat_number
        self._open -= {key for key in self._open if key[:2] == rollout and names(sample, number, *key[2:])}
        waiting = self._parked.get(rollout, [])
        waiting[:] = [chat for chat in waiting if not names(sample, number, chat.sample, chat.chat_number)]
        self._cache.abandon(*rollout, sample, number)
        if message.reason == AbandonReason.SUPERSEDED:
            self._superseded(*rollout, 0)

    def _answered(self, stream: FrameStream | None, key: ChatKey, asked: PendingChat, parent_chat: int) -> None:
        # If the stream is another one, the server sends the chat again. A chat that is no longer open was abandoned.
        if stream is self._stream and key in self._open:
            self._open.remove(key)
            self._answer(key, asked, parent_chat)

    def _failed(self, stream: FrameStream | None, error: BaseException) -> None:
        """End the stream, because an answer could not be sent. The server sends the chat again on the next stream."""
        if stream is not None:
            stream.end(Internal("the answer to a chat was not sent; the trainer's log says why"))

    def _answer(self, key: ChatKey, asked: PendingChat, parent_chat: int) -> None:
        try:
            self._reply(key, self._cache.reply(asked, key, parent_chat))
        except CallError as problem:
            self._reply(key, problem)
            if isinstance(problem, Aborted):  # the server ends the attempt without an outcome
                self._superseded(*key[:2], problem.attempt)

    def _reply(self, key: ChatKey, reply: bytes | CallError) -> None:
        if self._stream is not None:
            self._stream.answer(chat_reply_frame(*key, reply))
