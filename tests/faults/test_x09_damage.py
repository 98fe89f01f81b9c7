"""X9: one bit is flipped somewhere in a journal or a ledger. Nothing changes without a report, and all goes on.

A scene is made once: rollouts that are delivered, undelivered and running, as a killed process leaves them. Each flip
takes a copy of it, starts the real server and the real trainer on it, and compares what comes.
"""

import asyncio
import os
import random
import shutil
import socket
import sqlite3
from contextlib import AsyncExitStack, aclosing, closing
from pathlib import Path

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.errors import DataLoss, Unavailable
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.storage.examine import examine
from osmosis_grpc.storage.journal.schema import JOURNAL
from osmosis_grpc.storage.ledger.schema import LEDGER
from osmosis_grpc.trainer import (
    ChatRequest,
    ChatResponse,
    Completion,
    RolloutClient,
    RolloutRequest,
    TokenBlock,
    Trainer,
)
from tests.callback_trainer import CallbackTrainer
from tests.damaged import flip
from tests.waiting import is_empty, until

PATIENCE = 60.0
DONE, LATE, OPEN = ([f"{name}-{n}" for n in range(4)] for name in ("done", "late", "open"))
ENGINE = ServerConfig(outbox_delay=(0.02, 0.1), retry_delay=(0.02, 0.1), stop_again_after=(0.05, 0.1))


class Adder(RolloutAgentLoop):
    """Asks three times, the second time with a long message. It may be run again."""

    name = "adder"
    replayable = True

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        messages, said = list(ctx.request.messages), []
        for turn in range(3):
            reply = await ctx.chat(messages)
            said.append(reply.message["content"])
            messages += [reply.message, {"role": "user", "content": f"turn {turn} {'and more ' * 300 * (turn == 1)}"}]
        return ctx.complete(messages, reward=float(len("".join(said))))


class Policy:
    """Says the same to the same question. While it is closed, second chats of rollouts `open-N` wait."""

    def __init__(self, *, closed: bool) -> None:
        self.waiting = 0
        self._gate = asyncio.Event()
        if not closed:
            self._gate.set()

    async def __call__(self, request: ChatRequest) -> ChatResponse:
        if request.rollout_id in OPEN and request.number > 1 and not self._gate.is_set():
            self.waiting += 1
            await self._gate.wait()
        text = f"{request.rollout_id} {request.number}"
        count = sum(len(message["content"]) for message in request.messages) // 20
        return ChatResponse(
            message={"role": "assistant", "content": text},
            tokens=TokenBlock.of([7, request.number], [-0.5, -0.25]),
            prompt_ids=TokenBlock.of(list(range(count))).ids,
        )


def asked(name: str) -> RolloutRequest:
    return RolloutRequest(rollout_id=name, messages=[{"role": "user", "content": f"add, {name}"}])


def summary(completion: Completion) -> tuple:
    """What matters of an outcome."""
    samples = completion.samples.values()
    tokens = [segment.ids.tolist() for sample in samples for segment in sample.segments]
    return completion.status, completion.reward, str(completion.messages), str(tokens)


def is_lost(completion: Completion) -> bool:
    return completion.status == "FAILED" and completion.failure is not None and completion.failure.reason == "DATA_LOSS"


def checkpoint(database: Path) -> None:
    """What was written so far goes from the write-ahead log to the file itself."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def left(database: Path, folder: Path) -> None:
    """A file as a process that is killed now leaves it."""
    folder.mkdir(exist_ok=True)
    for suffix in ("", "-wal"):
        shutil.copy(f"{database}{suffix}", folder / f"{database.name}{suffix}")


def places(scene: Path, name: str, count: int, seed: int) -> list[tuple[str, int]]:
    """Bits of the file and of its log: heads, and anywhere."""
    dice, found = random.Random(seed), []
    files = [(scene / name, 100), (scene / f"{name}-wal", 32)]
    for number in range(count):
        path, head = files[number % 2]
        size = head if number % 10 < 2 else path.stat().st_size
        found.append((path.name, dice.randrange(8 * size)))
    return found


def quiet_port() -> int:
    """A port outside the ephemeral range: servers start and stop on it."""
    for port in random.Random(os.getpid()).sample(range(20_000, 30_000), 1_000):
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)):
                return port
    raise AssertionError("no port is free")


# The journal.


class Taking:
    """Takes completions; it may refuse those of some rollouts for now."""

    def __init__(self, refused: list[str]) -> None:
        self.refused = refused
        self.seen: set[str] = set()
        self.taken: dict[str, Completion] = {}

    async def __call__(self, completion: Completion, state: bytes, credential: str) -> None:
        self.seen.add(completion.rollout_id)
        if completion.rollout_id in self.refused:
            raise Unavailable("not now", retry_after=0.05)
        self.taken.setdefault(completion.rollout_id, completion)


@pytest.fixture
async def journal(tmp_path: Path) -> tuple[Path, int]:
    """A journal's folder, and the port of the callbacks."""
    state, scene = tmp_path / "state", tmp_path / "scene"
    taking, policy = Taking(LATE), Policy(closed=True)
    async with (
        CallbackTrainer(policy, port=quiet_port(), recorder=taking, tokens=TOKEN) as trainer,
        AgentServer([Adder()], port=0, config=ENGINE, state_dir=state) as server,
        RolloutClient(server.address) as client,
    ):
        for names in (DONE, LATE, OPEN):
            for name in names:
                await client.init(asked(name), callback=trainer.callback())
            if names is DONE:
                await until(lambda: len(taking.taken) == len(DONE))
                checkpoint(state / "journal.db")
        await until(lambda: taking.seen >= set(LATE) and policy.waiting == len(OPEN))
        left(state / "journal.db", scene)
        shutil.copytree(state / "credentials", scene / "credentials")
        return scene, trainer.port


TOKEN = "a-token-by-which-a-trainer-knows-its-callbacks"


async def after_journal(folder: Path, port: int) -> dict[str, Completion | str]:
    """What becomes of all rollouts: completions that are delivered, and what the server says of the settled ones."""
    taking, found = Taking([]), {}
    async with (
        CallbackTrainer(Policy(closed=False), port=port, recorder=taking, tokens=TOKEN),
        AgentServer([Adder()], port=0, config=ENGINE, state_dir=folder) as server,
        RolloutClient(server.address) as client,
    ):
        await until(lambda: is_empty(i async for i in client.rollouts() if not i.end_time or i.undelivered))
        for name in DONE:
            try:
                found[name] = (await client.get(name)).completion
            except DataLoss as error:
                found[name] = str(error)
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
    return found | taking.taken


def check(found: dict, expected: dict, names: list[str], log: str, where: object) -> None:
    """Each rollout is there as it should be, or has failed with DATA_LOSS and is named."""
    for name in names:
        got = found.get(name)
        if isinstance(got, Completion) and summary(got) == expected[name]:
            continue
        assert name in log, (
            f"{where}: {name} is {got and (summary(got) if isinstance(got, Completion) else got)}, unreported"
        )
        assert got is None or isinstance(got, str) or is_lost(got), f"{where}: {name} became {summary(got)}"


async def flipped_journals(scene: Path, port: int, tmp_path: Path, caplog, count: int, seed: int) -> None:
    whole = await after_journal(shutil.copytree(scene, tmp_path / "whole"), port)
    expected = {name: summary(completion) for name, completion in whole.items()}
    assert {status for status, *_ in expected.values()} == {"COMPLETED"}
    assert set(expected) == {*DONE, *LATE, *OPEN}
    kept = lost = 0
    for name, bit in places(scene, "journal.db", count, seed):
        folder = shutil.copytree(scene, tmp_path / "flipped")
        flip(folder / name, bit)
        told_before = examine(folder / "journal.db", JOURNAL)
        caplog.clear()
        found = await after_journal(folder, port)
        check(found, expected, [*DONE, *LATE, *OPEN], caplog.text, (name, bit))
        right = sum(isinstance(c, Completion) and summary(c) == expected[n] for n, c in found.items())
        assert right >= len(expected) - 1, f"{(name, bit)}: one bit costs one rollout at most\n{caplog.text}"
        assert right == len(expected) or not told_before.is_sound, f"{(name, bit)}: doctor finds nothing"
        kept, lost = kept + right, lost + len(expected) - right
        shutil.rmtree(folder)
    print(f"{count} bits: {kept} outcomes as before, {lost} reported")


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_x09_a_flipped_bit_in_the_journal(journal, tmp_path, caplog):
    await flipped_journals(*journal, tmp_path, caplog, 30, seed=1)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_x09_300_flipped_bits_in_the_journal(journal, tmp_path, caplog):
    await flipped_journals(*journal, tmp_path, caplog, 300, seed=2)


# The ledger.


@pytest.fixture
async def ledger(tmp_path: Path) -> tuple[Path, int]:
    """A ledger with its server's journal, and the port of the server."""
    state, scene = tmp_path / "state", tmp_path / "scene"
    policy, path = Policy(closed=True), tmp_path / "ledger"
    async with (
        AgentServer([Adder()], port=quiet_port(), config=ENGINE, state_dir=state) as server,
        AsyncExitStack() as stack,
    ):
        trainer = await stack.enter_async_context(Trainer([server.address], policy, ledger=path))
        for completion in [await trainer.rollout(asked(name)) for name in DONE]:
            await completion.confirm()
        for name in LATE[:2]:
            await trainer.rollout(asked(name))
        checkpoint(path)
        for name in LATE[2:]:
            await trainer.rollout(asked(name))
        running = [asyncio.create_task(trainer.rollout(asked(name))) for name in OPEN]
        await until(lambda: policy.waiting == len(OPEN))
        left(path, scene)
        left(state / "journal.db", scene / "state")
        port = server.port
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return scene, port


async def after_ledger(folder: Path, port: int) -> dict[str, Completion]:
    """All outcomes that the application gets, what it asks for again included."""
    found: dict[str, Completion] = {}
    async with (
        AgentServer([Adder()], port=port, config=ENGINE, state_dir=folder / "state"),
        Trainer([f"127.0.0.1:{port}"], Policy(closed=False), ledger=folder / "ledger") as trainer,
        asyncio.timeout(PATIENCE),
    ):
        async with aclosing(trainer.unconfirmed()) as completions:
            async for completion in completions:
                found[completion.rollout_id] = completion
                await completion.confirm()
        for name in {*LATE, *OPEN} - set(found):
            found[name] = await trainer.rollout(asked(name))
    return found


async def flipped_ledgers(scene: Path, port: int, tmp_path: Path, caplog, count: int, seed: int) -> None:
    whole = await after_ledger(shutil.copytree(scene, tmp_path / "whole"), port)
    expected = {name: summary(completion) for name, completion in whole.items()}
    assert {status for status, *_ in expected.values()} == {"COMPLETED"}
    assert set(expected) == {*LATE, *OPEN}
    lost = 0
    for name, bit in places(scene, "ledger", count, seed):
        folder = shutil.copytree(scene, tmp_path / "flipped")
        flip(folder / name, bit)
        told_before = examine(folder / "ledger", LEDGER)
        caplog.clear()
        found = await after_ledger(folder, port)
        check(found, expected, [*LATE, *OPEN], caplog.text, (name, bit))
        right = sum(summary(found[name]) == outcome for name, outcome in expected.items())
        assert right >= len(expected) - 1, f"{(name, bit)}: one bit costs one rollout at most\n{caplog.text}"
        assert not set(found) & set(DONE), f"{(name, bit)}: what was confirmed is handed out again"
        assert right == len(expected) or not told_before.is_sound, f"{(name, bit)}: doctor finds nothing"
        lost += len(expected) - right
        shutil.rmtree(folder)
    print(f"{count} bits: {lost} outcomes reported as lost")


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_x09_a_flipped_bit_in_the_ledger(ledger, tmp_path, caplog):
    await flipped_ledgers(*ledger, tmp_path, caplog, 30, seed=3)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_x09_300_flipped_bits_in_the_ledger(ledger, tmp_path, caplog):
    await flipped_ledgers(*ledger, tmp_path, caplog, 300, seed=4)
