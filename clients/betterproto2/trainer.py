"""The trainer under test of docs/conformance.md. With --script it runs the rollouts of clients/calculator.json on the
example agent examples/calculator instead.
"""

import argparse
import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import osmosis_trainer
from gen.osmosis.rollout import v1
from google.rpc import error_details_pb2
from grpclib import GRPCError, Status
from osmosis_trainer import Chat, Reply, Trainer, detail

arguments = argparse.ArgumentParser()
arguments.add_argument("--mode", default="attach")
arguments.add_argument("--target", default="")
arguments.add_argument("--listen", default="127.0.0.1:0")
arguments.add_argument("--advertise", default="")
arguments.add_argument("--rollouts", type=int, default=1)
arguments.add_argument("--prefix", default="betterproto2")
arguments.add_argument("--history", default="unspecified")
arguments.add_argument("--poll", type=float, default=osmosis_trainer.CHECK_INTERVAL)
arguments.add_argument("--script", type=Path)
OPTIONS = arguments.parse_args()
osmosis_trainer.CHECK_INTERVAL = OPTIONS.poll
SCRIPTS: dict[str, Any] = json.loads(OPTIONS.script.read_text()) if OPTIONS.script else {}


def show(event: str, **values: Any) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def size(text: str | None) -> int:
    return len((text or "").encode())


async def policy(chat: Chat) -> Reply:
    request = chat.request
    name = {key: getattr(request, key) for key in ("rollout_id", "attempt", "sample", "chat_number")}
    show("sampled", **name)
    newest = (chat.messages[-1].text or "") if chat.messages else ""
    wait = re.match(r"wait ([\d.]+)", newest)
    version = re.match(r"version (\S+)", newest)
    text, calls, seconds = f"echo: {newest}", [], float(wait[1]) if wait else 0.0
    if request.rollout_id in SCRIPTS:
        step = SCRIPTS[request.rollout_id]["replies"][request.chat_number - 1]
        text, calls, seconds = step["content"], step.get("tool_calls", []), step.get("seconds", 0.2)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        show("stopped", **name)
        raise
    tool_calls = [
        v1.ToolCall(id=f"call_{request.chat_number}_{n}", type="function", function=v1.FunctionCall(**call))
        for n, call in enumerate(calls)
    ]
    return Reply(
        v1.Message(role="assistant", text=text, tool_calls=tool_calls),
        finish_reason="tool_calls" if tool_calls else "stop",
        prompt=[*chat.parent_ids, *(1000 + size(message.text) for message in chat.messages[chat.known :])],
        ids=[request.chat_number, 2000 + size(text)],
        logprobs=[-0.5, -0.25],
        versions=[v1.VersionSpan(version=version[1], tokens=2)] if version else [],
    )


def on_outcome(outcome: v1.RolloutOutcome) -> None:
    keys = ("ids", "mask_runs", "logprobs", "chats")
    samples = [
        {
            "name": sample.name,
            "trainable": sample.trainable,
            "segments": [{key: getattr(segment, key) for key in keys} for segment in sample.segments],
        }
        for sample in outcome.samples
    ]
    name = {"rollout_id": outcome.rollout_id, "attempt": outcome.attempt, "result_id": outcome.result_id}
    show("outcome", **name, status=outcome.status.name, reward=outcome.reward, samples=samples)


async def run(trainer: Trainer, rollout_id: str, spec: v1.RolloutSpec) -> None:
    try:
        await trainer.rollout(spec, rollout_id)
    except GRPCError as error:
        if error.status is Status.ABORTED:
            os._exit(1)  # another trainer has the attachment
        info = detail(error, error_details_pb2.ErrorInfo)
        show("refused", rollout_id=rollout_id, status=error.status.name, reason=info.reason if info else "")


def specs() -> dict[str, v1.RolloutSpec]:
    def spec(agent_loop: str, text: str, label: str | None = None) -> v1.RolloutSpec:
        return v1.RolloutSpec(agent_loop=agent_loop, messages=[v1.Message(role="user", text=text)], label=label)

    if SCRIPTS:
        return {key: spec("calculator", each["question"], each["label"]) for key, each in SCRIPTS.items()}
    return {f"{OPTIONS.prefix}-{n}": spec("conformance", "start") for n in range(1, OPTIONS.rollouts + 1)}


async def main() -> None:
    listen = OPTIONS.listen if OPTIONS.mode == "callback" else ""
    history = v1.HistoryForm[OPTIONS.history.upper()]
    options: dict[str, Any] = {"listen": listen, "advertise": OPTIONS.advertise, "history": history}
    async with Trainer(OPTIONS.target, policy, on_outcome=on_outcome, **options) as trainer:
        rollouts = [run(trainer, *each) for each in specs().items()]
        await asyncio.gather(*rollouts, asyncio.to_thread(sys.stdin.read))


if __name__ == "__main__":
    if OPTIONS.mode not in ("attach", "callback"):
        sys.exit(3)
    asyncio.run(main())
