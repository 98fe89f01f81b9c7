"""Finds the original of a fork, checks that the fork can start from it, and reads its recorded chats."""

from osmosis_grpc.engine.context import EngineContext
from osmosis_grpc.engine.record import Record
from osmosis_grpc.engine.recorded_chats import ForkedChats
from osmosis_grpc.protocol.errors import FailedPrecondition, InvalidArgument, NotFound
from osmosis_grpc.protocol.types import Fork

MOST_NAMED = 20
"""An error names at most this many chats."""


class Forks:
    """Finds the originals of forks, in memory and in the journal."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context

    def original(self, fork: Fork, agent_loop: str, rollout_id: str, owner: str) -> Record:
        """Return the record of a fork's original, without reading its chats.

        Raises NotFound if the owner has no such rollout, FailedPrecondition if the agent loop is not replayable, and
        InvalidArgument if the original is the rollout itself or ran another agent loop.
        """
        if fork.rollout_id == rollout_id:
            raise InvalidArgument("spec.fork.rollout_id", "is the rollout itself; name the rollout to fork from")
        if not self._context.runnables[agent_loop].replayable:
            raise FailedPrecondition(
                f"spec.fork: agent loop {agent_loop!r} is not replayable, so it cannot run again on recorded replies; "
                "set replayable = True in its class if it asks the same chats when it gets the same replies; "
                "CodingAgent(snapshots=True) is replayable",
                kind="NOT_REPLAYABLE",
                subject=agent_loop,
            )
        record = self._context.table.find(fork.rollout_id, fork.attempt)
        if record is None or record.owner != owner or not record.accepted.done():
            raise NotFound(
                f"spec.fork.rollout_id: there is no rollout {fork.rollout_id} attempt {fork.attempt} here; "
                "it ran on another server, or its record is no longer kept",
                kind="rollout",
                name=fork.rollout_id,
            )
        if record.agent_loop != agent_loop:
            problem = f"ran agent loop {record.agent_loop!r}, not {agent_loop!r}; a fork runs the same agent loop"
            raise InvalidArgument("spec.fork.rollout_id", f"{fork.rollout_id} {problem}")
        return record

    async def chats(self, fork: Fork, original: Record) -> ForkedChats:
        """Read the recorded chats of the original, outside the event loop, and return them.

        Raises InvalidArgument if the original has ended without a reply to the chat, and FailedPrecondition if it has
        no reply yet.
        """
        if original.live:
            await self._context.log.flush()  # the reader sees only committed events
        found = await self._context.journal.read_apart(
            lambda trajectory: ForkedChats(fork, trajectory(fork.rollout_id, fork.attempt))
        )
        if found.found:
            found.folder = self._context.journal.rollout_folder(original.sequence)
            return found
        chat = f"chat {fork.chat_number} of sample {fork.sample!r}"
        if original.live:
            raise FailedPrecondition(
                f"spec.fork.chat: {chat} of rollout {fork.rollout_id} has no reply yet; fork again after the reply",
                kind="NO_REPLY",
                subject=f"{fork.sample} {fork.chat_number}",
            )
        names = [f"{sample} {number}" for sample, number in found.answered[:MOST_NAMED]]
        more = f" and {len(found.answered) - MOST_NAMED} more" if len(found.answered) > MOST_NAMED else ""
        known = f"the chats with a reply are: {', '.join(names)}{more}" if names else "it has no chat with a reply"
        raise InvalidArgument("spec.fork.chat", f"rollout {fork.rollout_id} has no reply to {chat}; {known}")
