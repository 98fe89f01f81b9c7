"""The engine's calls to an agent: run() and ended(). Each run gets its own copy of the request."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from osmosis_grpc.agent import RolloutContext
from osmosis_grpc.agent.request import RolloutRequest as AgentsRequest
from osmosis_grpc.agent.rollout_scope import BaseUrls
from osmosis_grpc.agent.runnable import Runnable
from osmosis_grpc.engine.record import Record
from osmosis_grpc.engine.termination import Termination
from osmosis_grpc.protocol.errors import RolloutEndedError, SnapshotGone
from osmosis_grpc.protocol.types import RolloutRequest, jsontext
from osmosis_grpc.protocol.types.messages import copy_messages
from osmosis_grpc.protocol.types.outcome import log_traceback, printable
from osmosis_grpc.protocol.types.requests import copy_of, unread_metadata

log = logging.getLogger(__name__)
AGENT_RAISED = "the agent of rollout %s raised%s\n%s"
"""The log line about an exception that ends a rollout. The outcome contains the same exception."""


async def run_agent(
    agent: Runnable, context: RolloutContext, stopped: Callable[[Record, BaseException], None], record: Record
) -> Termination:
    """Run an agent. Return the termination for its result or its exception. Raises only a cancellation.

    If the run is cancelled, `stopped` gets the record and the exception. An error in the agent's own code is logged
    with its traceback. A failed chat, a rollout that has ended, or a missing snapshot is logged as one line.
    """
    try:
        with BaseUrls() as base_urls:
            context.belong(base_urls)
            return Termination.returned(await agent.run(context))
    except asyncio.CancelledError as error:
        stopped(record, error)
        raise
    except BaseException as error:
        termination = Termination.raised(error)
        failure = termination.failure
        where = f" at {failure.where}" if failure and failure.where else ""
        rollout_id = context.request.rollout_id
        if failure and (failure.boundary == "trainer" or isinstance(error, RolloutEndedError | SnapshotGone)):
            log.warning("rollout %s failed%s: %s", rollout_id, where, printable(failure.message))
        else:
            log.warning(AGENT_RAISED, rollout_id, where, log_traceback(error))
        return termination


def notify_ended(agent: Runnable | None, record: Record) -> None:
    """Call ended() of an agent. If it raises, log the exception."""
    try:
        if agent is not None:
            agent.ended(record.rollout_id, record.attempt)
    except BaseException as error:  # the agent's code may raise anything; nothing is awaited here
        log.warning("ended() of agent loop %s raised\n%s", record.agent_loop, log_traceback(error))


def own_copy(request: RolloutRequest, read: Callable[[int], None] = lambda size: None) -> AgentsRequest:
    """Return a copy of a request, which the agent may change.

    The metadata is parsed when the agent first reads it. Then `read` is called with its size in bytes.
    """
    metadata = unread_metadata(request)
    own: Any = {}
    if isinstance(metadata, jsontext.Unparsed):
        own = metadata.for_reader(read)
    elif metadata:
        own = jsontext.copy(metadata, "metadata_json")
    return copy_of(
        request,
        AgentsRequest,
        messages=copy_messages(request.messages, "messages", any_role=True),
        completion_params=jsontext.copy(request.completion_params, "sampling") if request.completion_params else {},
        metadata=own,
    )
