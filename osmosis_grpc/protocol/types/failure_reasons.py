"""The reasons of failures. The list is fixed, so a client can choose an action for each reason."""

import re
from enum import StrEnum

from osmosis_grpc.protocol.errors import (
    InvalidArgument,
    OsmosisRolloutError,
    OsmosisTimeoutError,
    OsmosisTransportError,
    ReplyUnreadable,
    ResourceExhausted,
    SnapshotGone,
)

DATA_LOSS = "data_loss"
"""The finish reason of a rollout whose record in the journal or the ledger is damaged."""
_WORDS = re.compile("[A-Z][A-Z0-9_]{0,63}")


class FailureReason(StrEnum):
    """The reason of a Failure. A later version can add reasons. Clients treat an unknown reason like SERVER_ERROR."""

    AGENT_EXCEPTION = "AGENT_EXCEPTION"
    """The agent raised an exception, or cancelled its own task."""
    AGENT_ERROR = "AGENT_ERROR"
    """The agent returned an error: `ctx.error(...)`."""
    AGENT_RESULT_INVALID = "AGENT_RESULT_INVALID"
    """The agent returned a value that is not a result, or a result that cannot be sent."""
    AGENT_TIMEOUT = "AGENT_TIMEOUT"
    """The rollout's agent_timeout expired. The boundary of the Failure names the part that was busy at that moment."""
    AGENT_LOOP_NOT_FOUND = "AGENT_LOOP_NOT_FOUND"
    """The server restarted and no longer hosts the rollout's agent loop."""
    TOOL_EXCEPTION = "TOOL_EXCEPTION"
    """A tool failed, and the agent did not catch its error."""
    GRADER_EXCEPTION = "GRADER_EXCEPTION"
    """The grader raised an exception."""
    GRADER_RESULT_INVALID = "GRADER_RESULT_INVALID"
    """The grader left a sample without a reward."""
    GRADER_TIMEOUT = "GRADER_TIMEOUT"
    """The rollout's grader_timeout expired."""
    TRAINER_LOST = "TRAINER_LOST"
    """The trainer was disconnected for longer than its grace period."""
    TRAINER_UNREACHABLE = "TRAINER_UNREACHABLE"
    """A chat got no reply within the grace period, because the trainer was disconnected, silent or at capacity."""
    CHAT_REFUSED = "CHAT_REFUSED"
    """The trainer answered a chat with an error."""
    REPLY_UNREADABLE = "REPLY_UNREADABLE"
    """The trainer's reply to a chat cannot be read, or contradicts itself."""
    REFUSED = "REFUSED"
    """No agent server accepted the rollout. The trainer's library sets this reason."""
    SHUTDOWN = "SHUTDOWN"
    """The server shut down, and no later process can continue the rollout."""
    SUPERSEDED = "SUPERSEDED"
    """A higher attempt of the rollout replaced this attempt. The trainer's library sets this reason."""
    RESTART = "RESTART"
    """The server restarted while the agent ran, and the agent is not replayable."""
    REPLAY_DIVERGED = "REPLAY_DIVERGED"
    """The agent ran again after a restart, and its chats differed from the recorded chats."""
    SNAPSHOT_GONE = "SNAPSHOT_GONE"
    """The saved sandbox from which the rollout has to continue is gone or damaged."""
    CRASHED_SERVER = "CRASHED_SERVER"
    """The server's process died several times while this rollout's agent ran."""
    DATA_LOSS = "DATA_LOSS"
    """The journal's data about the rollout is damaged."""
    SERVER_ERROR = "SERVER_ERROR"
    """The server failed because of a bug of its own."""


_BY_BOUNDARY = {
    "agent": FailureReason.AGENT_EXCEPTION,
    "tool": FailureReason.TOOL_EXCEPTION,
    "trainer": FailureReason.CHAT_REFUSED,
    "grader": FailureReason.GRADER_EXCEPTION,
    "server": FailureReason.SERVER_ERROR,
}


def reason_of(error: OsmosisRolloutError | None) -> FailureReason:
    """Return the reason for an exception that escaped from an agent. `error` is None for a foreign exception."""
    if error is None:
        return FailureReason.AGENT_EXCEPTION
    if isinstance(error, ReplyUnreadable):
        return FailureReason.REPLY_UNREADABLE
    if isinstance(error, SnapshotGone):
        return FailureReason.SNAPSHOT_GONE
    if isinstance(error, OsmosisTransportError | OsmosisTimeoutError | ResourceExhausted):
        return FailureReason.TRAINER_UNREACHABLE
    return _BY_BOUNDARY.get(error.boundary, FailureReason.AGENT_EXCEPTION)


def read_reason(text: str, field: str) -> FailureReason | str:
    """Return the received reason. An unknown reason is returned as a str.

    Raises InvalidArgument naming `field` for a text that cannot be a reason.
    """
    try:
        return FailureReason(text) if text else ""
    except ValueError:
        if _WORDS.fullmatch(text):
            return text
    raise InvalidArgument(field, "is not a reason in upper snake case of at most 64 characters")
