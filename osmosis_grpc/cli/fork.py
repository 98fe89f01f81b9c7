"""The fork command: runs a recorded rollout again, with recorded replies up to a chat and live replies after it.

With -m, the agent loop runs in this process, and the fork is written to the folder of a run. Without -m, a running
server runs the fork, and this process is its trainer.
"""

import secrets
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.loader import LoadError
from osmosis_grpc.agent.runnable import Runnable, as_runnable
from osmosis_grpc.cli.command_options import ForkOptions
from osmosis_grpc.cli.daemon_thread import STOPPING, run_in_daemon_thread
from osmosis_grpc.cli.dataset_options import model_of
from osmosis_grpc.cli.options import AgentSources, SourceOptions
from osmosis_grpc.cli.place import Place, place_of
from osmosis_grpc.cli.recorded import load_loops, loop_of, named
from osmosis_grpc.cli.screen import program
from osmosis_grpc.cli.source import Source, open_source
from osmosis_grpc.engine.recorded_chats import ForkedChats
from osmosis_grpc.protocol.errors import CallError, OsmosisRolloutError
from osmosis_grpc.protocol.types import Fork, OutcomeStatus, RolloutOutcome, RolloutRequest
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.evaluate import ModelError, RunError, RunFolder
from osmosis_grpc.records.evaluate.models import Model
from osmosis_grpc.records.local_host import ONE, LocalHost
from osmosis_grpc.records.reading.list_filter import origin
from osmosis_grpc.records.reading.phrases import counted, reward_text
from osmosis_grpc.records.reading.record_values import plain
from osmosis_grpc.records.reading.source_port import SourceError
from osmosis_grpc.serve.json_output import Records, records, say_error, usage_error
from osmosis_grpc.storage import JournalError
from osmosis_grpc.storage.journal.schema import KEPT

MAIN = "main"


@dataclass(frozen=True, slots=True)
class _Original:
    """The recorded rollout to fork."""

    request: RolloutRequest
    agent_loop: str
    fork: Fork
    chats: ForkedChats

    def forked(self) -> RolloutRequest:
        """Return the request for a fork: the original request with new ids and without a group."""
        rollout_id = f"{self.fork.rollout_id[:200]}-fork-{secrets.token_hex(3)}"
        ids = replace(self.request, rollout_id=rollout_id, attempt=1, group=None, idempotency_key=None)
        return replace(ids, fork=self.fork)


def run_fork_command(options: ForkOptions, agents: AgentSources, source: SourceOptions, *, json: bool) -> int:
    """Run the fork, print how it ended, and return the exit code: 0, 1, 2 or 130."""
    with records(json) as out:
        try:
            place = place_of("fork", source.where)
            found = open_source("fork", source, place)
            original = run_in_daemon_thread(lambda: _original(options, found))
            if options.module:
                return _Here(options, agents, original, out).run()
            return _on_server(options, source, place, original, out)
        except (SourceError, ModelError, RunError, LoadError, JournalError, OSError) as error:
            usage_error("fork", printable(str(error)))


async def _original(options: ForkOptions, source: Source) -> _Original:
    """Read the rollout to fork. Raises SourceError if it is missing, or has no reply to the chat."""
    async with source:
        info = await named(source, options.rollout, options.attempt or 0)
        attempt = info.rollout_id, info.attempt
        fork = Fork(info.rollout_id, options.at_chat, options.sample, info.attempt)
        request, _ = await source.request(*attempt)
        events = [event async for event in source.events(*attempt)]
        folder = await source.rollout_folder(*attempt)
    chats = ForkedChats(fork, events)
    chats.folder = folder
    if not chats.found:
        names = ", ".join(f"{sample} {number}" for sample, number in chats.answered)
        which = f"chat {fork.chat_number} of sample {fork.sample!r}"
        raise SourceError(
            f"rollout {fork.rollout_id} has no reply to {which}; "
            + (f"its chats with a reply are: {names}. --at-chat and --sample name one" if names else "it has no reply")
        )
    return _Original(request, info.agent_loop, fork, chats)


class _Here:
    """A fork that runs in this process."""

    def __init__(self, options: ForkOptions, agents: AgentSources, original: _Original, out: Records) -> None:
        self._options = options
        self._original = original
        self._out = out
        self._agent_loop = _agent_loop(options, agents, original)
        self._model = model_of(options)
        params = original.request.completion_params
        run_in_daemon_thread(lambda: self._model.probe(params))
        self._folder = RunFolder.create(Path(options.save_dir) if options.save_dir else None, self._about(self._model))

    def _about(self, model: Model) -> dict[str, Any]:
        return {
            "command": "fork",
            "module": list(self._options.module),
            "agent_loop": self._original.agent_loop,
            "forked_from": origin(self._original.fork),
            "model": self._options.model,
            "base_url": model.url,
        }

    def run(self) -> int:
        """Run the fork, and return the exit code."""
        request, path = self._original.forked(), self._folder.path
        _say_start(self._out, request)
        config = replace(ONE, agent_timeout=self._options.timeout, record_ttl=KEPT)

        async def work() -> RolloutOutcome:
            async with LocalHost(self._agent_loop, self._model.policy, config, folder=path) as host:
                return await host.run(request, original=self._original.chats)

        state, outcome = "interrupted", None
        try:
            outcome = _outcome(work)
            state = "finished"
        finally:
            self._folder.end(state, {} if outcome is None else {"status": str(outcome.status)})
        if outcome is None:
            return 130
        return _say_end(self._out, request, outcome, Place(path).words, str(path))


def _agent_loop(options: ForkOptions, agents: AgentSources, original: _Original) -> RolloutAgentLoop | Runnable:
    """Load the agent loop of the original. If it is unknown or not replayable, end the command with exit code 2."""
    name = original.agent_loop
    agent_loop = loop_of("fork", load_loops("fork", options.module, agents), name)
    if not as_runnable(agent_loop).replayable:
        usage_error(
            "fork",
            f"agent loop {name!r} is not replayable; set replayable = True in its class if it asks the same chats when "
            "it gets the same replies; CodingAgent(snapshots=True) is replayable",
        )
    return agent_loop


def _on_server(options: ForkOptions, source: SourceOptions, place: Place, original: _Original, out: Records) -> int:
    """Run the fork on the server that has the original. This process is the trainer."""
    if not place.server:
        usage_error(
            "fork",
            f"-m MODULE:ATTR names agent loop {original.agent_loop!r}, which then runs here; or --from names the "
            "running server that has the rollout, and runs the fork there",
        )
    from osmosis_grpc.cli.source import chosen_server
    from osmosis_grpc.trainer import Trainer

    server, model = chosen_server("fork", source, place), model_of(options)
    run_in_daemon_thread(lambda: model.probe(original.request.completion_params))
    request = original.forked()
    if not request.agent_loop:
        request = replace(request, agent_loop=original.agent_loop)
    _say_start(out, request)

    async def work() -> RolloutOutcome:
        async with Trainer([server.target], model.policy, credentials=server.credentials) as trainer:
            return await trainer.rollout(request)

    outcome = _outcome(work)
    if outcome is None:
        return 130
    return _say_end(out, request, outcome, place.words, None)


def _outcome(work: Callable[[], Awaitable[RolloutOutcome]]) -> RolloutOutcome | None:
    """Return the outcome of the fork; None after Ctrl-C. A refusal ends the command with exit code 2."""
    try:
        return run_in_daemon_thread(work, stopping=STOPPING)
    except KeyboardInterrupt:
        return None
    except (CallError, OsmosisRolloutError) as error:
        usage_error("fork", printable(str(error)))


def _say_start(out: Records, request: RolloutRequest) -> None:
    out.write("started", rollout_id=request.rollout_id, forked_from=origin(request.fork))
    out.say(f"rollout {request.rollout_id}, forked from {request.fork}")


def _say_end(out: Records, request: RolloutRequest, outcome: RolloutOutcome, where: str, run: str | None) -> int:
    completed, metrics = outcome.status is OutcomeStatus.COMPLETED, outcome.metrics
    show = f"{program()} show {shlex.quote(request.rollout_id)} {where}"
    out.write(
        "forked",
        rollout_id=request.rollout_id,
        forked_from=origin(request.fork),
        status=str(outcome.status),
        finish_reason=outcome.finish_reason,
        failure=plain(outcome.failure),
        reward=outcome.mean_reward,
        chats=metrics.num_llm_calls,
        response_tokens=metrics.response_tokens,
        run=run,
        show=show,
    )
    live = counted(metrics.num_llm_calls, "live chat")
    out.say(f"{outcome.status} ({printable(outcome.finish_reason)}), {reward_text(outcome)}, {live}")
    if outcome.failure is not None:
        say_error(printable(f"fork: {outcome.failure.message}"))
    out.say("To see it:")
    out.say(show)
    return 0 if completed else 1
