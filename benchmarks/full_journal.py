"""Makes a journal of ended rollouts. Twenty per cent of them failed, for four reasons; the others have rewards.

python -m benchmarks.full_journal DIR [--rollouts 100000] [--turns 2] [--tokens 64]
"""

import argparse
import asyncio
import random
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.figures import progress
from benchmarks.policy import made_up_tokens
from osmosis_grpc.protocol.types import (
    ChatResponse,
    EventKind,
    Failure,
    Group,
    InitRequest,
    JournaledRollout,
    OutcomeStatus,
    Receipt,
    RolloutMetrics,
    RolloutOutcome,
    RolloutRequest,
    TrajectoryEvent,
    events,
)
from osmosis_grpc.storage import SqliteJournal

AGENTS = ("calculator", "browser", "shell", "search")
REASONS = ("TOOL_EXCEPTION", "AGENT_EXCEPTION", "AGENT_TIMEOUT", "CHAT_REFUSED")
BATCH = 500
"""After this many rollouts, the commit gets time."""


async def fill(folder: Path, rollouts: int, turns: int, tokens: int) -> None:
    """Write a journal with settled rollouts to a folder."""
    journal = SqliteJournal(folder)
    loop = asyncio.get_running_loop()
    chance = random.Random(1)
    try:
        for number in range(rollouts):
            _rollout(journal, number, turns, tokens, chance)
            if number % BATCH == BATCH - 1:
                committed = loop.create_future()
                journal.barrier(committed.set_result)
                if not await committed:
                    raise OSError(f"the journal cannot be written: {journal.problem}")
    finally:
        journal.close()


def _rollout(journal: SqliteJournal, number: int, turns: int, tokens: int, chance: random.Random) -> None:
    rollout_id = f"rollout-{number:06d}"
    messages = [{"role": "user", "content": "What is the sum of 1 and 2? " * 4}]
    group = Group(f"group-{number // 8:05d}", number % 8, 8)
    request = RolloutRequest(rollout_id=rollout_id, messages=messages, group=group)
    init = InitRequest(request=request, digest=number.to_bytes(32))
    now = time.time()
    entry = JournaledRollout(
        init=init,
        tools=[],
        owner="",
        attachment_id="benchmark",
        sequence=number + 1,
        agent_loop=AGENTS[number % len(AGENTS)],
        accept_time=now,
    )
    kinds: list[EventKind] = [events.Accepted(init), events.Started(0.001, "version")]
    for chat in range(1, turns + 1):
        reply = {"role": "assistant", "content": "The sum is 3. " * 14}
        response = ChatResponse(message=reply, tokens=made_up_tokens(tokens))
        kinds.append(events.ChatRequested(sample="main", chat_number=chat, parent_chat=chat - 1, messages=messages))
        kinds.append(events.ChatAnswered(sample="main", chat_number=chat, response=response, latency=0.5))
    kinds += [events.Ended(_outcome(rollout_id, turns, tokens, chance)), events.Delivered(Receipt.RECORDED, tries=1)]
    for event_number, kind in enumerate(kinds, 1):
        event = TrajectoryEvent(rollout_id, 1, event_number, now, kind)
        journal.append(event, 0, None, entry if event_number == 1 else None)


def _outcome(rollout_id: str, turns: int, tokens: int, chance: random.Random) -> RolloutOutcome:
    metrics = RolloutMetrics(num_llm_calls=turns, prompt_tokens=turns * 300, response_tokens=turns * tokens)
    if chance.random() < 0.2:
        reason = chance.choices(REASONS, weights=(60, 30, 9, 1))[0]
        failure = Failure("tool", f"the tool search raised {reason}: no such page", reason=reason)
        ended = RolloutOutcome(rollout_id=rollout_id, status=OutcomeStatus.FAILED, failure=failure, metrics=metrics)
        return replace(ended, finish_reason="error")
    reward = round(chance.random(), 3)
    ended = RolloutOutcome(rollout_id=rollout_id, status=OutcomeStatus.COMPLETED, reward=reward, metrics=metrics)
    return replace(ended, finish_reason="length" if reward < 0.05 else "stop")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, default in (("rollouts", 100_000), ("turns", 2), ("tokens", 64)):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"[{default}]")
    given = parser.parse_args()
    began = time.perf_counter()
    asyncio.run(fill(given.folder, given.rollouts, given.turns, given.tokens))
    progress(f"{given.rollouts} rollouts in {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
