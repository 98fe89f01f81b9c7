"""The demo command: starts an agent server in a separate process, and runs eight rollouts on it.

The command's own process is the trainer. Its model is a mock.
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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from osmosis_grpc.cli.screen import program
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
NEXT = """
Next:
  {program} view --demo
      look at rollouts in a browser: turns, tools, tokens, failures, groups
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
"""The demo waits at most this many seconds until the server has stopped, and then kills it."""
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _DemoError(Exception):
    """The demo failed. The message is the reason."""


@dataclass(frozen=True, slots=True)
class _Demo:
    """The rollouts and the server of a demo."""

    folder: str
    """A temporary folder, in which the calculator runs."""
    agent: Sequence[str]
    """The options of `serve` that name the user's agent; empty for the calculator."""
    options: Sequence[str]
    """More options of `serve`."""
    token: str

    @property
    def tasks(self) -> Sequence[tuple[str, str]]:
        """The questions and their reference answers."""
        return ((QUESTION, ANSWER),) * len(TASKS) if self.agent else TASKS


def run_demo(as_json: bool, agent: Sequence[str] = (), state_dir: str | None = None, workers: int = 1) -> int:
    """Run the rollouts, print them, and return the exit code.

    Args:
        as_json: Whether to print a record for each rollout instead of the table.
        agent: The options of `serve` that name the agent. If empty, the agent is the calculator.
        state_dir: The folder of the journal. By default it is a temporary folder.
        workers: The number of server processes.
    """
    with records(as_json) as out:
        if not as_json:
            say_error("starting an agent server in a separate process ...")
        for number in STOPS[1:]:
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
        try:
            temporary = tempfile.TemporaryDirectory(prefix="osmosis-demo-", ignore_cleanup_errors=True)
        except OSError as error:
            say_error(f"demo: no folder for the server's journal: {error.strerror}; set TMPDIR to a writable folder")
            return 1
        try:
            with temporary as folder:
                token = secrets.token_urlsafe()
                demo = _Demo(folder, agent, _options(folder, state_dir, workers, token), token)
                outcomes = asyncio.run(_run(demo, _environment()))
        except _DemoError as error:
            say_error(f"demo: {error}")
            return 1
        for outcome, (_, label) in zip(outcomes, demo.tasks, strict=True):
            out.write(
                "outcome",
                rollout_id=outcome.rollout_id,
                status=str(outcome.status),
                reward=outcome.mean_reward,
                finish_reason=outcome.finish_reason,
                label=label,
                samples={name: {"reward": sample.reward} for name, sample in outcome.samples.items()},
                messages=list(outcome.messages),
            )
        done = sum(outcome.status == "COMPLETED" for outcome in outcomes)
        if not as_json:
            Console().print(_table(outcomes))
        about = "The mock rounds 7 / 2 to a whole number: reward 0."
        if agent:
            about = f"The mock called every tool, and answered {ANSWER}."
        out.say(f"{done} of {len(outcomes)} rollouts COMPLETED. {about}")
        failures = [outcome.failure for outcome in outcomes if outcome.failure]
        for text in dict.fromkeys(f"{each.message}{f' (at {each.where})' if each.where else ''}" for each in failures):
            out.say(f"A rollout failed: {printable(text)}")
        if failures and agent:
            out.say(f"The task is {QUESTION!r}. To run your own rows: {program()} test {shlex.join(agent)} -d FILE")
        if state_dir is not None:
            kept = shlex.quote(state_dir)
            out.say(f"To look at them: {program()} view --from {kept}")
            out.say(f"To export them: {program()} export --to messages --from {kept}")
        elif not agent:
            out.say(NEXT.format(program=program()))
    return 0 if done == len(outcomes) else 1


def _options(folder: str, state_dir: str | None, workers: int, token: str) -> list[str]:
    secret = os.path.join(folder, "token")
    with open(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"demo={token}\n")
    options = ["--grpc-port", "0", "--no-http", "--json", "--log-level", "warning", "--drain-timeout", "0"]
    state = os.path.abspath(state_dir or os.path.join(folder, "state"))
    return [*options, "--token-file", secret, "--workers", str(workers), "--state-dir", state]


def _environment() -> dict[str, str]:
    """Return the server's environment variables: those of this process without OSMOSIS_*, and a PYTHONPATH."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("OSMOSIS_")}
    return env | {"PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in ("", *sys.path))}


async def _run(demo: _Demo, env: dict[str, str]) -> list[RolloutOutcome]:
    """Start a server, and run the rollouts on it.

    The calculator runs in the temporary folder, so it reads no .env file. The user's agent runs in the current folder.
    The server has its own process group, so Ctrl-C stops only the demo, which then stops the server.

    Raises:
        _DemoError: The server ends early or refuses a call, or the rollouts take longer than LIMIT.
    """
    server = _started(demo, env)
    end = child(WAIT, asyncio.to_thread(server.wait))
    tasks: list[asyncio.Task[Any]] = [end]
    try:
        assert server.stdout is not None
        line = await asyncio.to_thread(server.stdout.readline)
        if not line:
            raise _DemoError(f"the server did not start: {_end(await end)}")
        rollouts = child(TRAIN, _rollouts(str(json.loads(line)["grpc"]), demo))
        tasks.append(rollouts)
        await asyncio.wait(tasks, timeout=LIMIT, return_when=asyncio.FIRST_COMPLETED)
        if rollouts.done() and rollouts.exception() is None:
            return rollouts.result()
        if rollouts.done():  # if a call failed because the server ended, this process learns that a moment later
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
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)  # the cleanup is short and must not be interrupted
        # The server must end before the trainer closes. Otherwise the server logs that it has lost its trainer.
        for stop in (server.terminate, server.kill):
            with contextlib.suppress(ProcessLookupError):
                stop()
            if (await asyncio.wait({end}, timeout=STOP_WITHIN))[0]:
                break
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if server.stdout is not None:
            server.stdout.close()


def _started(demo: _Demo, env: dict[str, str]) -> "subprocess.Popen[bytes]":
    # asyncio's own subprocesses warn of an unknown child process if they are cancelled while they start.
    return subprocess.Popen(
        (sys.executable, "-m", "osmosis_grpc.serve", *(demo.agent or CALCULATOR), *demo.options),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=None if demo.agent else demo.folder,
        env=env,
        process_group=0,
    )


def _end(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


async def _rollouts(target: str, demo: _Demo) -> list[RolloutOutcome]:
    """Start the rollouts as the trainer, answer their chats, and return their outcomes."""
    from osmosis_grpc.policies import EveryToolMock, ToolCallingMock
    from osmosis_grpc.trainer import Credentials, Trainer

    # The demo itself reports the end of the server, so this logger's warnings are not needed.
    logging.getLogger("osmosis_grpc.trainer.log_warnings").setLevel(logging.ERROR)
    run = secrets.token_hex(2)
    policy = EveryToolMock(FINAL) if demo.agent else ToolCallingMock()
    async with Trainer(target, policy, transport="callback", credentials=Credentials(token=demo.token)) as trainer:

        async def rollout(number: int, question: str, label: str) -> RolloutOutcome:
            rollout_id, messages = f"demo-{run}-{number}", [{"role": "user", "content": question}]
            metadata = {"ground_truth": label}
            return await trainer.rollout(rollout_id=rollout_id, messages=messages, label=label, metadata=metadata)

        return list(await asyncio.gather(*(rollout(i, *task) for i, task in enumerate(demo.tasks, start=1))))


def _table(outcomes: list[RolloutOutcome]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("rollout", "status", "reward", "turns", "tokens", "finish reason", "latency"):
        table.add_column(name, no_wrap=True, min_width=len(name))
    for outcome in outcomes:
        metrics = outcome.metrics
        table.add_row(
            outcome.rollout_id,
            str(outcome.status),
            _reward(outcome.mean_reward),
            str(metrics.num_llm_calls),
            str(metrics.response_tokens),
            Text(printable(outcome.finish_reason)),
            f"{metrics.total_latency_ms:.0f} ms",
        )
    return table


def _reward(reward: float | None) -> Text:
    """Format a reward. A zero is red, so that nobody overlooks it."""
    return Text("-") if reward is None else Text(f"{reward:.1f}", style="" if reward > 0 else "bold red")
