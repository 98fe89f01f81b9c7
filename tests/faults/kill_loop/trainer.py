"""The trainer of the kill loop, a process that may be killed and started again:

python -m tests.faults.kill_loop.trainer --target HOST:PORT --rollouts N --in-flight N [--ledger FILE] [--callback PORT]
    [--replies fixed|random]

The history's file is named by the environment, as are the failpoints. Each sampling has a draw of its own, which the
reply carries as an extra. Fixed replies are a function of rollout, sample and chat number. Random replies depend on the
draw, too: their content, their tool calls and their tokens, so two replies for one chat differ in what the agent sees.
It ends with 0 once every rollout is applied.
"""

import argparse
import asyncio
import hashlib
import itertools
import json
import logging
import os
import secrets
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import numpy as np

from osmosis_grpc.engine import failpoints
from osmosis_grpc.trainer import (
    ChatRequest,
    ChatResponse,
    RolloutOutcome,
    RolloutRequest,
    TokenBlock,
    Trainer,
    TrainerConfig,
)
from tests.faults.kill_loop.agents import Passenger, Traveller
from tests.faults.kill_loop.history import VARIABLE, History, read

LATENCY = (0.005, 0.03)
"""Seconds that a reply takes, by its name."""
_draws = itertools.count()


def agent_loop(index: int) -> str:
    """Four in five go on after a crash."""
    return Passenger.name if index % 5 == 0 else Traveller.name


def requests(count: int, done: set[str]) -> Iterator[RolloutRequest]:
    """Those that are not done."""
    for index in range(count):
        if (rollout_id := f"r{index}") not in done:
            yield RolloutRequest(
                rollout_id=rollout_id,
                agent_loop=agent_loop(index),
                messages=[{"role": "user", "content": f"question {index}"}],
            )


def tokens_of(text: str) -> TokenBlock:
    """Tokens that stand for a text and nothing else."""
    start = zlib.crc32(text.encode())
    ids = (start + 7919 * np.arange(3 + start % 11, dtype=np.int64)) % 50_000
    return TokenBlock.of(ids, -(ids % 997 + 1) / 1000)


class Policy:
    """Gives the same reply to the same chat however often it is asked, or a random one each time."""

    def __init__(self, history: History, replies: str = "fixed") -> None:
        self._history = history
        self._random = replies == "random"

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        draw = f"{os.getpid()}-{next(_draws)}-{secrets.token_hex(4)}"
        name = f"{request.rollout_id} {request.sample} {request.chat_number}" + (f" {draw}" if self._random else "")
        drawn = zlib.crc32(name.encode())
        self._history.note(
            "sampled", request.rollout_id, request.attempt, request.sample, request.chat_number, outcome=draw
        )
        await asyncio.sleep(LATENCY[0] + (LATENCY[1] - LATENCY[0]) * (drawn % 97) / 97)  # the reply's latency
        message: dict[str, Any] = {"role": "assistant", "content": f"reply to {name}"}
        if drawn % 2 and request.sample == "main":
            numbers = json.dumps({"a": drawn % 89, "b": drawn % 83})
            call_id = f"call {draw}" if self._random else f"call-{drawn % 1009}"
            call = {"id": call_id, "type": "function", "function": {"name": "add", "arguments": numbers}}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        known = [] if request.known_ids is None else [request.known_ids]
        new = request.messages[request.prefix_len if known else 0 :]
        prompt = np.concatenate([*known, *(tokens_of(json.dumps(m, sort_keys=True)).ids for m in new)]).astype("<u4")
        return ChatResponse(message=message, tokens=tokens_of(name), prompt_ids=prompt, extra={"draw": draw})


def digest(outcome: RolloutOutcome) -> str:
    """Stands for all that is trained on, and what the agent made of it."""
    summary = hashlib.sha256(json.dumps([outcome.messages, outcome.reward], sort_keys=True).encode())
    for name, sample in sorted(outcome.samples.items()):
        summary.update(json.dumps([name, sample.messages, sample.trainable], sort_keys=True).encode())
        for segment in sample.segments:
            summary.update(json.dumps([segment.mask_runs, segment.chats, segment.drift_index]).encode())
            summary.update(segment.ids.tobytes() + segment.logprobs.tobytes())
    return summary.hexdigest()[:16]


def digest_of_draws(outcome: RolloutOutcome) -> str:
    """Stands for the random replies that the outcome holds, by sample; other tokens than theirs make it another one."""
    draws: dict[str, list[str]] = {}
    for name, sample in outcome.samples.items():
        replies = [message for message in sample.messages if message["role"] == "assistant"]
        draws[name] = [(reply["content"] or reply["tool_calls"][0]["id"]).split(" ")[-1] for reply in replies]
        sampled = [segment.ids[segment.mask()] for segment in sample.segments]
        named = (f"{outcome.rollout_id} {name} {number} {draw}" for number, draw in enumerate(draws[name], 1))
        wanted = [tokens_of(text).ids for text in named]
        if not np.array_equal(np.concatenate([*sampled, []]), np.concatenate([*wanted, []])):
            return f"the tokens of sample {name} are not those of its replies"
    return digest_of(draws)


def digest_of(draws: Mapping[str, Sequence[str]]) -> str:
    """Stands for the draws of each sample's replies, in order."""
    return hashlib.sha256(json.dumps(draws, sort_keys=True).encode()).hexdigest()[:16]


class Application:
    """Applies each result once, by its id, and says so before it confirms."""

    def __init__(self, path: str, digest: Callable[[RolloutOutcome], str]) -> None:
        self._digest = digest
        self.done: set[str] = set()
        """Rollouts that an earlier process applied and confirmed."""
        self._history = History(path, "trainer")
        self._applied: dict[str, str] = {}
        """Rollouts by result id."""
        for line in read(path):
            if line.op == "applied":
                self._applied[line.key[1]] = line.id
            elif line.op == "confirmed":
                self.done.add(line.id)

    async def take(self, outcome: RolloutOutcome) -> None:
        """An outcome that the library handed out."""
        name, result = outcome.rollout_id, outcome.result_id
        summary = {"status": outcome.status, "reason": outcome.finish_reason}
        if outcome.finish_reason == "refused":  # killed after the commit of a confirmation, it is over and applied
            failure = outcome.failure.message if outcome.failure else ""
            over = name in self._applied.values() and (" is over" in failure or " is at attempt " in failure)
            self._history.note("confirmed" if over else "refused", name, outcome.attempt, "", outcome=failure)
            return
        if outcome.failure is not None:
            summary |= {
                "boundary": outcome.failure.boundary,
                "retryable": outcome.failure.retryable,
                "failure": outcome.failure.message,
            }
        summary["digest"] = self._digest(outcome)
        self._history.note(
            "again" if result in self._applied else "applied", name, outcome.attempt, result, outcome=summary
        )
        self._applied[result] = name
        await outcome.confirm()
        self._history.note("confirmed", name, outcome.attempt, result)


async def main(given: argparse.Namespace) -> None:
    """All rollouts, over an attachment or with callbacks."""
    path = os.environ[VARIABLE]
    app = Application(path, digest_of_draws if given.replies == "random" else digest)
    policy = Policy(History(path, "trainer"), given.replies)
    by_callbacks = {"transport": "callback", "listen": f"127.0.0.1:{given.callback}"} if given.callback else {}
    config = TrainerConfig(longest_pause=0.25)
    async with Trainer(given.target, policy, ledger=given.ledger, config=config, **by_callbacks) as trainer:
        rollouts = trainer.run(requests(given.rollouts, app.done), max_in_flight=given.in_flight)
        async with aclosing(rollouts) as outcomes:
            async for outcome in outcomes:
                await app.take(outcome)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, action="append")
    parser.add_argument("--rollouts", type=int, required=True)
    parser.add_argument("--in-flight", type=int, required=True)
    parser.add_argument("--ledger")
    parser.add_argument("--callback", type=int, default=0, help="the port to be called back at")
    parser.add_argument("--replies", choices=("fixed", "random"), default="fixed")
    failpoints.arm()
    logging.basicConfig()
    logging.getLogger("osmosis_grpc.trainer.scheduler").setLevel(logging.INFO)  # why a rollout begins anew
    asyncio.run(main(parser.parse_args()))
