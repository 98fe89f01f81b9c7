"""A trainer with a ledger in a process of its own, to be killed:

python -m tests.trainer.ledger_process attach|callback TARGET LEDGER NAME COUNT [FAILPOINTS]

Takes what an earlier process left, then runs those of COUNT rollouts of the Talker's that were never applied. Appends a
JSON line to LEDGER.told for each chat that it samples, before its reply is anywhere, and for each outcome that it
applies, before that is confirmed; one that was applied before is confirmed and told as "again".
"""

import asyncio
import json
import os
import sys
from contextlib import aclosing
from pathlib import Path

from osmosis_grpc.engine import failpoints
from osmosis_grpc.trainer import ChatRequest, ChatResponse, RolloutOutcome, Trainer, TransportName
from tests.attach.policies import CountingPolicy, requests
from tests.ports import quiet_port


class Application:
    """Samples and applies, and writes down both."""

    def __init__(self, ledger: str) -> None:
        self._policy = CountingPolicy((0.0, 0.01))
        self._told = os.open(f"{ledger}.told", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        lines = map(json.loads, os.read(self._told, 1 << 26).splitlines())
        self.applied = {line["applied"]: line["result"] for line in lines if "applied" in line}

    def _tell(self, **what: object) -> None:
        os.write(self._told, json.dumps(what).encode() + b"\n")

    async def policy(self, request: ChatRequest, /) -> ChatResponse:
        response = await self._policy(request)
        self._tell(sampled=[request.rollout_id, request.attempt, request.sample, request.chat_number])
        return response

    async def apply(self, outcome: RolloutOutcome) -> None:
        if self.applied.get(outcome.rollout_id) == outcome.result_id:
            self._tell(again=outcome.rollout_id)
        else:
            self._apply(outcome)
        await outcome.confirm()

    def _apply(self, outcome: RolloutOutcome) -> None:
        self.applied[outcome.rollout_id] = outcome.result_id
        text = [message["content"] for message in outcome.messages]
        self._tell(
            applied=outcome.rollout_id,
            attempt=outcome.attempt,
            status=outcome.status,
            result=outcome.result_id,
            text=text,
            reward=outcome.reward,
            tokens=[chat.tokens.ids.tolist() for chat in outcome.samples["main"].chats],
            sampled=sum(segment.sampled for segment in outcome.samples["main"].segments),
        )


async def play(
    transport: TransportName, application: Application, target: str, ledger: str, name: str, count: int
) -> None:
    """Apply what an earlier process left, and run the rollouts that were never applied."""
    async with trainer_of(transport, application, target, ledger) as trainer:
        async with aclosing(trainer.unconfirmed()) as outcomes:
            async for outcome in outcomes:
                await application.apply(outcome)
        asked = [request for request in requests(name, count) if request.rollout_id not in application.applied]
        async with aclosing(trainer.run(asked)) as outcomes:
            async for outcome in outcomes:
                await application.apply(outcome)


def trainer_of(transport: TransportName, application: Application, target: str, ledger: str) -> Trainer:
    """Returns the trainer of each process. With callbacks it listens at the same port as the one before."""
    listen = f"127.0.0.1:{port_of(ledger)}" if transport == "callback" else ""
    return Trainer([target], application.policy, transport=transport, listen=listen, ledger=ledger)


def port_of(ledger: str) -> int:
    """The port for callbacks: the same in each process, so that servers deliver what they have left."""
    kept = Path(f"{ledger}.port")
    if not kept.exists():
        kept.write_text(str(quiet_port()))
    return int(kept.read_text())


async def main(transport: TransportName, target: str, ledger: str, name: str, count: str, armed: str = "") -> None:
    failpoints.arm(armed)
    await play(transport, Application(ledger), target, ledger, name, int(count))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
