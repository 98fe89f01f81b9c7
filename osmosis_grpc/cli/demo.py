"""The demo command: a server in a process of its own, this process as its trainer, eight rollouts."""

import os
import secrets
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from osmosis_grpc.types import Completion

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
"""Questions and their reference answers. The mock rounds, so it gets the fifth wrong."""

NEXT = """
Next:
  {program} validate --run -m osmosis_grpc.testing.calculator:agent_loop
      check an agent loop
  {program} serve -m osmosis_grpc.testing.calculator:agent_loop
      serve it
  examples/calculator/server.py    an agent loop to begin from
  examples/trainer_minimal.py      a trainer in under 40 lines
  docs/architecture.md             how one rollout travels"""


def demo(json: Annotated[bool, typer.Option("--json", help="Eight JSON records instead of a table.")] = False) -> None:
    """Run eight rollouts of a calculator agent, with a mock for a model, over real sockets."""
    import asyncio

    from osmosis_grpc.serve.records import records

    with records(json) as out:
        if not json:
            typer.echo("starting an agent server in a process of its own ...", err=True)
        command = [sys.executable, "-m", "osmosis_grpc.serve", "-m", "osmosis_grpc.testing.calculator:agent_loop"]
        token = secrets.token_urlsafe()  # whatever the environment says, this trainer has one of its own
        options = ["--grpc-port", "0", "--no-http", "--json", "--log-level", "warning", "--token", f"demo={token}"]
        with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as server:
            try:
                completions = asyncio.run(_train(_address(server), token))
            finally:
                server.terminate()
        for completion, (_, label) in zip(completions, TASKS, strict=True):
            out.write("completion", **_record(completion, label))
    if not json:
        _print_table(completions)
    if not all(completion.status == "COMPLETED" for completion in completions):
        raise typer.Exit(1)


def _address(server: "subprocess.Popen[str]") -> str:
    import json

    assert server.stdout is not None
    line = server.stdout.readline()
    if not line:
        typer.echo(f"demo: the server did not start (exit code {server.wait()})", err=True)
        raise typer.Exit(1)
    return str(json.loads(line)["grpc"])


async def _train(target: str, token: str) -> "list[Completion]":
    """The trainer: starts the rollouts, answers their chats, collects their completions."""
    import asyncio

    from osmosis_grpc.policies import ToolCallingMock
    from osmosis_grpc.trainer import RolloutClient, TrainerServer

    async with TrainerServer(ToolCallingMock()) as trainer, RolloutClient(target, token=token) as client:

        async def rollout(number: int, question: str, label: str) -> "Completion":
            rollout_id, messages = f"demo-{number}", [{"role": "user", "content": question}]
            await client.init(rollout_id=rollout_id, messages=messages, label=label, callback=trainer.callback())
            return await trainer.completion(rollout_id)

        tasks = (rollout(i, *task) for i, task in enumerate(TASKS, start=1))
        return list(await asyncio.wait_for(asyncio.gather(*tasks), timeout=60))


def _record(completion: "Completion", label: str) -> dict[str, Any]:
    samples = {
        name: {
            "chats": [
                {
                    "number": chat.number,
                    "prompt_ids": chat.prompt_ids.tolist() if chat.prompt_ids is not None else None,
                    "ids": chat.tokens.ids.tolist() if chat.tokens is not None else None,
                    "logprobs": chat.tokens.logprobs.tolist()
                    if chat.tokens is not None and chat.tokens.logprobs is not None
                    else None,
                }
                for chat in sample.chats
            ]
        }
        for name, sample in completion.samples.items()
    }
    return {
        "rollout_id": completion.rollout_id, "status": str(completion.status), "reward": completion.reward,
        "finish_reason": completion.finish_reason, "label": label, "messages": list(completion.messages),
        "samples": samples,
    }  # fmt: skip


def _print_table(completions: "list[Completion]") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for name in ("rollout", "status", "reward", "turns", "tokens", "finish reason", "latency"):
        table.add_column(name, no_wrap=True, min_width=len(name))
    for completion in completions:
        metrics = completion.metrics
        table.add_row(
            completion.rollout_id, str(completion.status),
            "-" if completion.reward is None else f"{completion.reward:.1f}", str(metrics.num_llm_calls),
            str(metrics.response_tokens), completion.finish_reason, f"{metrics.total_latency_ms:.0f} ms",
        )  # fmt: skip
    Console().print(table)
    done = sum(completion.status == "COMPLETED" for completion in completions)
    typer.echo(f"{done} of {len(completions)} rollouts COMPLETED. The mock rounds, so 7 / 2 earns nothing.")
    program = "osmosis-grpc" if shutil.which("osmosis-grpc") else os.path.relpath(sys.argv[0])
    typer.echo(NEXT.format(program=program))
