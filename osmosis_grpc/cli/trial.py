"""Runs one rollout of an agent loop in this process for validate --run, and records what the agent does.

The rollout runs on the real engine. Its model is a mock that calls every offered tool. osmosis_grpc.cli.trial_findings
turns the observations into findings.
"""

import concurrent.futures
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from osmosis_grpc.agent.run_outcome import RunOutcome, outcome_of
from osmosis_grpc.agent.runnable import AgentLoopRunnable, as_runnable
from osmosis_grpc.agent.tool_runs import ToolRun, tool_watcher
from osmosis_grpc.cli.daemon_thread import run_in_daemon_thread
from osmosis_grpc.engine import rollout_session, runner
from osmosis_grpc.engine import watchdog as watchdog_file
from osmosis_grpc.engine.watchdog import Watchdog
from osmosis_grpc.policies import EveryToolMock
from osmosis_grpc.protocol.errors import OsmosisRolloutError
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse, Message, RolloutOutcome, RolloutRequest
from osmosis_grpc.records.local_host import ONE, LocalHost

QUESTION = "What is (2 + 3) * 4?"

ANSWER = "20"
"""The label, the ground_truth in the metadata, and the end of the mock's last reply."""
FINAL = f"I called every tool.\n#### {ANSWER}"
"""The mock's last reply."""

GRACE = 5.0
"""After the timeout, the command waits this many more seconds for the rollout to end, and then gives up.

It may have to, because a timeout does not stop an agent that blocks the event loop.
"""

BLOCKED = 0.2
"""If an agent blocks the event loop for more than this many seconds, the block is recorded."""

SCHEDSTAT = "/proc/thread-self/schedstat"
"""The file in which Linux reports how long the calling thread has run, and how long it has waited for a processor, in
nanoseconds."""

MOST_CHATS = 100
"""If a sample has more chats than this, the agent counts as endless. It is ten times the request's max_turns."""

MOST_RUNS = 1000
"""At most this many tool calls, and this many chats, are kept."""


@dataclass(frozen=True, slots=True)
class Block:
    """A period in which the event loop was blocked."""

    seconds: float
    where: str
    """file:line in function."""
    tool: str
    """The tool that execute_tool_calls was running, or "" if none."""


@dataclass(slots=True)
class Trial:
    """The observations of one rollout."""

    outcome: RolloutOutcome | None = None
    """The outcome; None if the agent did not begin or did not end."""
    result: Any = None
    returned: bool = False
    error: BaseException | None = None
    endless: bool = False
    """Whether the rollout was stopped because the agent sent too many chats."""
    stuck: bool = False
    """Whether the event loop was still blocked at the end."""
    get_tools_error: BaseException | None = None
    runs: list[ToolRun] = field(default_factory=list)
    """The tool calls that helpers such as execute_tool_calls ran."""
    offered: dict[str, None] = field(default_factory=dict)
    """Names of the tools that get_tools returned or a chat offered."""
    called: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Maps SAMPLE/CALL_ID to the name and the arguments of the model's tool call."""
    chats: list[tuple[ChatRequest, Message]] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)


class _Watched:
    """Runs an agent loop with a mock model, and records what it does."""

    def __init__(self, agent_loop: Any, trial: Trial) -> None:
        self._agent = as_runnable(agent_loop)
        self.name, self.source = self._agent.name, self._agent.source
        self.tools, self.accepted, self.ended = self._agent.tools, self._agent.accepted, self._agent.ended
        self.lists_tools_without_request = self.replayable = False
        self.stop: Callable[[], object] = lambda: None
        self._trial = trial
        self._model = EveryToolMock(FINAL)

    async def run(self, context: Any) -> RunOutcome:
        trial = self._trial
        trial.offered |= dict.fromkeys(_names(context.tools))
        tool_watcher.set(lambda run: trial.runs.append(run) if len(trial.runs) < MOST_RUNS else None)
        try:
            if isinstance(self._agent, AgentLoopRunnable):
                await self._agent.bind(context)
                trial.result = await self._agent.call(context)
            else:
                trial.result = await self._agent.run(context)
        except BaseException as error:
            trial.error = error
            raise
        trial.returned = True
        return outcome_of(trial.result)

    async def model(self, request: ChatRequest, /) -> ChatResponse:
        trial = self._trial
        trial.offered |= dict.fromkeys(_names(request.tools or ()))
        if request.chat_number > MOST_CHATS:
            trial.endless = True
            self.stop()
        response = await self._model(request)
        if len(trial.chats) < MOST_RUNS:
            trial.chats.append((request, response.message))
        for call in response.message.get("tool_calls") or ():
            trial.called[f"{request.sample}/{call['id']}"] = call["function"]["name"], call["function"]["arguments"]
        return response


def _names(tools: Any) -> list[str]:
    functions = [tool.get("function") for tool in tools if isinstance(tool, dict)]
    return [f["name"] for f in functions if isinstance(f, dict) and isinstance(f.get("name"), str)]


def _watch_blocks(watchdog: Watchdog, blocks: list[Block]) -> None:
    """Record each period in which the event loop is blocked, with the place that the watchdog finds."""
    seen, before = watchdog.blocked, _waited()

    def answered(seconds: float) -> None:
        nonlocal seen, before
        waited = _waited()
        own = seconds - (waited - before)  # time that other programs take does not count as blocking
        if own > BLOCKED / 2 and watchdog.blocked > seen and len(blocks) < MOST_RUNS:
            blocks.append(Block(own, watchdog.last, watchdog.last_tool))
        seen, before = watchdog.blocked, waited

    watchdog.on_lag = answered


def _waited() -> float:
    """Return how many seconds this thread has waited for a processor; 0 if the system does not report it."""
    with contextlib.suppress(OSError, IndexError, ValueError), open(SCHEDSTAT, encoding="ascii") as file:
        return int(file.read().split()[1]) / 1e9
    return 0.0


def try_out(agent_loop: Any, timeout: float) -> Trial:
    """Run one rollout of a valid agent loop. Return even if the agent does not end."""
    for module in (runner, watchdog_file, rollout_session):  # the findings report what these modules would log
        logging.getLogger(module.__name__).disabled = True
    trial = Trial()
    watched = _Watched(agent_loop, trial)
    seen: list[Watchdog] = []
    try:
        trial.outcome = run_in_daemon_thread(lambda: _rollout(watched, trial, timeout, seen), timeout + GRACE)
    except concurrent.futures.TimeoutError:
        trial.stuck = True
        trial.blocks += [Block(timeout + GRACE, watchdog.last, watchdog.last_tool) for watchdog in seen]
    except (OsmosisRolloutError, SystemExit) as error:
        trial.get_tools_error = error
    return trial


async def _rollout(watched: _Watched, trial: Trial, timeout: float, seen: list[Watchdog]) -> RolloutOutcome:
    # The watchdog is certain to see only blocks that last twice as long as its limit.
    config = replace(ONE, blocked_after=BLOCKED / 2)
    request = RolloutRequest(
        rollout_id="validate",
        messages=[{"role": "user", "content": QUESTION}],
        label=ANSWER,
        metadata={"ground_truth": ANSWER},
        agent_timeout=timeout,
    )
    async with LocalHost(watched, watched.model, config) as host:
        seen.append(host.engine.watchdog)
        _watch_blocks(host.engine.watchdog, trial.blocks)
        watched.stop = lambda: host.engine.cancel("", rollout_id=request.rollout_id)
        return await host.run(request)
