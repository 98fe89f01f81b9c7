"""The demo command starts an agent server in a separate process, and runs eight rollouts on it.

The process of the command is the trainer. Its model is a mock.
"""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from osmosis_grpc.cli.program import program
from osmosis_grpc.cli.trial import ANSWER, FINAL, QUESTION
from osmosis_grpc.protocol.errors import CallError
from osmosis_grpc.protocol.types import RolloutOutcome
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.serve.json_output import records, say_error
from osmosis_grpc.supervise import OnFailure, child, job

TRAIN = job("cli.demo_trainer", OnFailure.RAISE)
WAIT = job("cli.demo_server", OnFailure.RAISE)

TASKS = (
    ("What is 2 + 3?", "5"),
    ("What is 12 * 12?", "144"),
    ("What is (2 + 3) * (4 + 5)?", "45"),
    ("What is 100 - 1 - 2 - 3?", "94"),
    ("What is 7 / 2?", "3.5"),
    ("What is (1 + 2) * (3 + 4) * (5 + 6)?", "231"),
    ("What is 81 / 9 / 3?", "3"),
    ("What is 2 * 2 * 2 * 2 * 2?", "32"),
)
"""Questions and their reference answers. The mock model rounds, so its answer to the fifth question is wrong."""

CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop")
ROUNDS = "The mock model rounds, so 7 / 2 gets reward 0."
NEXT = """
Next:
  {program} validate --run -m osmosis_grpc.testing.calculator:agent_loop
      check an agent loop
  {program} serve -m osmosis_grpc.testing.calculator:agent_loop
      serve it
  {program} demo -m MODULE:ATTR, or --command "python my_agent.py"
      run eight rollouts of your own agent
  {program} init my-agent
      write an agent to begin from
  {program} docs trainers
      write a trainer; docs without a page lists all pages"""


LIMIT = 60.0
"""All rollouts together may take at most this many seconds."""
STOP_WITHIN = 10.0
"""The demo waits at most this many seconds until the server has stopped. Then the demo kills the server."""
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _DemoError(Exception):
    """The demo failed. The message is the reason."""


def run_demo(as_json: bool, agent: Sequence[str] = (), state_dir: str | None = None, workers: int = 1) -> int:
    """Run the rollouts, print them, and return the exit code.

    `agent` has the options of `serve` that name the agent. Without them, the agent is the calculator. The journal is in
    `state_dir`, or else in a temporary folder. The server has `workers` processes.
    """
    with records(as_json) as out:
        if not as_json:
            say_error("starting an agent server in a separate process ...")
        tasks = ((QUESTION, ANSWER),) * len(TASKS) if agent else TASKS
        try:
            outcomes = _outcomes(agent, tasks, state_dir, workers)
        except _DemoError as error:
            say_error(f"demo: {error}")
            return 1
        for outcome, (_, label) in zip(outcomes, tasks, strict=True):
            out.write("outcome", **_record(outcome, label))
        done = sum(outcome.status == "COMPLETED" for outcome in outcomes)
        if not as_json:
            Console().print(_table(outcomes))
        about = f"The mock called every tool, and answered {ANSWER}." if agent else ROUNDS
        out.say(f"{done} of {len(outcomes)} rollouts COMPLETED. {about}")
        for text in dict.fromkeys(outcome.failure.message for outcome in outcomes if outcome.failure):
            out.say(f"A rollout failed: {text}")
        if state_dir is not None:
            folder = shlex.quote(state_dir)
            out.say(f"To look at them: {program()} list --state-dir {folder}")
            out.say(f"To export them: {program()} export --to messages --state-dir {folder}")
        elif not agent:
            out.say(NEXT.format(program=program()))
    return 0 if done == len(outcomes) else 1


def _outcomes(
    agent: Sequence[str], tasks: Sequence[tuple[str, str]], state_dir: str | None, workers: int
) -> list[RolloutOutcome]:
    """Run the rollouts on a server with a temporary folder, and delete the folder at the end."""
    for number in STOPS[1:]:
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    token = secrets.token_urlsafe()
    try:
        temporary = tempfile.TemporaryDirectory(prefix="osmosis-demo-", ignore_cleanup_errors=True)
    except OSError as error:
        raise _DemoError(
            f"no folder for the server's journal: {error.strerror}; set TMPDIR to a writable folder"
        ) from None
    more = (
        "--workers",
        str(workers),
        "--state-dir",
        os.path.abspath(state_dir or os.path.join(temporary.name, "state")),
    )
    with temporary as folder, _server(folder, token, agent, more) as server:
        return asyncio.run(_train(_address(server), server, _Trainer(token, tasks, every_tool=bool(agent))))


@contextlib.contextmanager
def _server(folder: str, token: str, agent: Sequence[str], more: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Start the agent server with its files in `folder` and more options of `serve`, and stop it at the end.

    The server gets no OSMOSIS_ variables from this process. The calculator runs in `folder` and reads no .env
    file; an agent of the user runs in the current folder. The server has its own process group, so Ctrl-C stops only
    the demo. The demo then stops the server.
    """
    command = [sys.executable, "-m", "osmosis_grpc.serve", *(agent or CALCULATOR)]
    secret = os.path.join(folder, "token")
    with open(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"demo={token}\n")
    options = [
        "--grpc-port",
        "0",
        "--no-http",
        "--json",
        "--log-level",
        "warning",
        "--token-file",
        secret,
        "--drain-timeout",
        "0",
        *more,
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith("OSMOSIS_")}
    env["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in ("", *sys.path))
    server: subprocess.Popen[str] | None = None
    try:
        with _signals_wait():
            server = subprocess.Popen(
                [*command, *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                cwd=None if agent else folder,
                env=env,
                process_group=0,
            )
        yield server
    finally:
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)  # the cleanup is short and must not be interrupted
        if server is not None:
            with server:
                server.terminate()
                try:
                    server.wait(STOP_WITHIN)
                except subprocess.TimeoutExpired:
                    server.kill()


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Delay the first signal and drop the others.

    If a signal interrupted Popen, the process id of the started server would be unknown.
    """
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for received in came[:1]:
            signal.raise_signal(received)


def _address(server: subprocess.Popen[str]) -> str:
    """Wait until the server is ready, and return its HOST:PORT. Raises _DemoError if the server ends first."""
    assert server.stdout is not None
    line = server.stdout.readline()
    if not line:
        raise _DemoError(f"the server did not start: {_end(server.wait())}")
    return str(json.loads(line)["grpc"])


def _end(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


@dataclass(frozen=True, slots=True)
class _Trainer:
    """What the trainer of the demo needs."""

    token: str
    tasks: Sequence[tuple[str, str]]
    """The questions and their reference answers."""
    every_tool: bool
    """Whether the mock calls every tool, and not only those of the calculator."""


async def _train(target: str, server: subprocess.Popen[str], given: _Trainer) -> list[RolloutOutcome]:
    """Run the rollouts. Raises _DemoError if the server ends early or refuses a call, and after LIMIT seconds."""
    rollouts, end = child(TRAIN, _rollouts(target, given)), child(WAIT, _ended(server))
    try:
        await asyncio.wait({rollouts, end}, timeout=LIMIT, return_when=asyncio.FIRST_COMPLETED)
        if rollouts.done() and rollouts.exception() is None:
            return rollouts.result()
        if rollouts.done():  # if a call failed because the server ended, _ended() returns a moment later
            await asyncio.wait({end}, timeout=1.0)
        if end.done():
            raise _DemoError(f"the server ended before all rollouts had ended: {_end(end.result())}")
        if not rollouts.done():
            raise _DemoError(f"the rollouts did not end within {LIMIT:g} s")
        try:
            return rollouts.result()
        except CallError as error:
            raise _DemoError(f"the server refused a call: {error}") from None
    finally:
        # The server must end before the trainer closes. Otherwise the server logs that it has lost its trainer.
        server.terminate()
        await asyncio.wait({end}, timeout=STOP_WITHIN)
        for task in (rollouts, end):
            task.cancel()
        await asyncio.gather(rollouts, end, return_exceptions=True)


async def _ended(server: subprocess.Popen[str]) -> int:
    """Wait for the end of the server and return its exit code."""
    # A thread that waits for the server would keep the event loop from ending.
    while (code := server.poll()) is None:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    return code


async def _rollouts(target: str, given: _Trainer) -> list[RolloutOutcome]:
    """Start the rollouts as the trainer, answer their chats, and return their outcomes."""
    from osmosis_grpc.policies import EveryToolMock, ToolCallingMock
    from osmosis_grpc.trainer import Credentials, Trainer

    # The demo itself reports the end of the server, so this logger's warnings are not needed.
    logging.getLogger("osmosis_grpc.trainer.unreachable_warnings").setLevel(logging.ERROR)
    run = secrets.token_hex(2)
    policy = EveryToolMock(FINAL) if given.every_tool else ToolCallingMock()
    credentials = Credentials(token=given.token)
    async with Trainer(target, policy, transport="callback", credentials=credentials) as trainer:

        async def rollout(number: int, question: str, label: str) -> RolloutOutcome:
            rollout_id, messages = f"demo-{run}-{number}", [{"role": "user", "content": question}]
            metadata = {"ground_truth": label}
            return await trainer.rollout(rollout_id=rollout_id, messages=messages, label=label, metadata=metadata)

        return list(await asyncio.gather(*(rollout(i, *task) for i, task in enumerate(given.tasks, start=1))))


def _record(outcome: RolloutOutcome, label: str) -> dict[str, Any]:
    samples = {
        name: {
            "chats": [
                {
                    "number": chat.chat_number,
                    "prompt_ids": chat.prompt_ids.tolist() if chat.prompt_ids is not None else None,
                    "ids": chat.tokens.ids.tolist() if chat.tokens is not None else None,
                    "logprobs": chat.tokens.logprobs.tolist()
                    if chat.tokens is not None and chat.tokens.logprobs is not None
                    else None,
                }
                for chat in sample.chats
            ]
        }
        for name, sample in outcome.samples.items()
    }
    return {
        "rollout_id": outcome.rollout_id,
        "status": str(outcome.status),
        "reward": outcome.mean_reward,
        "finish_reason": outcome.finish_reason,
        "label": label,
        "messages": list(outcome.messages),
        "samples": samples,
    }


def _table(outcomes: list[RolloutOutcome]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("rollout", "status", "reward", "turns", "tokens", "finish reason", "latency"):
        table.add_column(name, no_wrap=True, min_width=len(name))
    for outcome in outcomes:
        metrics = outcome.metrics
        table.add_row(
            outcome.rollout_id,
            str(outcome.status),
            "-" if outcome.mean_reward is None else f"{outcome.mean_reward:.1f}",
            str(metrics.num_llm_calls),
            str(metrics.response_tokens),
            Text(printable(outcome.finish_reason)),
            f"{metrics.total_latency_ms:.0f} ms",
        )
    return table
