"""One flipped bit in a journal or a ledger. No outcome changes without a report: in the log, by `doctor`, or a refusal.

A fixture makes a scene: the files of a killed process, with delivered, undelivered and running rollouts. Each flip
copies the scene, starts a real server and a real trainer on the copy, and compares the outcomes.
"""

import asyncio
import random
import shutil
import sqlite3
from contextlib import AsyncExitStack, aclosing, closing
from pathlib import Path

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.protocol.errors import DataLoss, LedgerError, Unavailable
from osmosis_grpc.protocol.types.rollout_info import RolloutInfo
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.storage import JournalError
from osmosis_grpc.storage.find_damage import examine
from osmosis_grpc.storage.journal.schema import JOURNAL
from osmosis_grpc.storage.ledger.rows import LEDGER
from osmosis_grpc.trainer import (
    ChatRequest,
    ChatResponse,
    RolloutClient,
    RolloutOutcome,
    RolloutRequest,
    TokenBlock,
    Trainer,
)
from tests.callback_trainer import CallbackTrainer
from tests.damaged import flip
from tests.ports import quiet_port
from tests.waiting import is_empty, until

PATIENCE = 60.0
DONE, LATE, OPEN = ([f"{name}-{n}" for n in range(4)] for name in ("done", "late", "open"))
ENGINE = ServerConfig(outbox_delay=(0.02, 0.1), retry_delay=(0.02, 0.1), stop_again_after=(0.05, 0.1))


class Adder(RolloutAgentLoop):
    """Sends three chats, the third with a long message. It is replayable."""

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
    """Gives the same reply to the same question. While it is closed, second chats of rollouts `open-N` wait."""

    def __init__(self, *, closed: bool) -> None:
        self.waiting = 0
        self._gate = asyncio.Event()
        if not closed:
            self._gate.set()

    async def __call__(self, request: ChatRequest) -> ChatResponse:
        if request.rollout_id in OPEN and request.chat_number > 1 and not self._gate.is_set():
            self.waiting += 1
            await self._gate.wait()
        text = f"{request.rollout_id} {request.chat_number}"
        count = sum(len(message["content"]) for message in request.messages) // 20
        return ChatResponse(
            message={"role": "assistant", "content": text},
            tokens=TokenBlock.of([7, request.chat_number], [-0.5, -0.25]),
            prompt_ids=TokenBlock.of(list(range(count))).ids,
        )


def request_of(name: str) -> RolloutRequest:
    return RolloutRequest(rollout_id=name, messages=[{"role": "user", "content": f"add, {name}"}])


def compared(outcome: RolloutOutcome) -> tuple:
    """Return the parts of an outcome that are compared."""
    samples = outcome.samples.values()
    tokens = [segment.ids.tolist() for sample in samples for segment in sample.segments]
    return outcome.status, outcome.reward, str(outcome.messages), str(tokens)


def checkpoint(database: Path) -> None:
    """Move all commits from the write-ahead log to the file."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def copy_after_kill(database: Path, folder: Path) -> None:
    """Copy a file as a kill at this moment leaves it."""
    folder.mkdir(exist_ok=True)
    for suffix in ("", "-wal"):
        shutil.copy(f"{database}{suffix}", folder / f"{database.name}{suffix}")


def random_bits(scene: Path, name: str, count: int, seed: int) -> list[tuple[str, int]]:
    """Return random bits of a file and of its log, some of them in the headers."""
    dice, found = random.Random(seed), []
    files = [(scene / name, 100), (scene / f"{name}-wal", 32)]
    for number in range(count):
        path, head = files[number % 2]
        size = head if number % 10 < 2 else path.stat().st_size
        found.append((path.name, dice.randrange(8 * size)))
    return found


# The journal.


class Recorder:
    """Records outcomes, and refuses those of some rollouts."""

    def __init__(self, refused: list[str]) -> None:
        self.refused = refused
        self.seen: set[str] = set()
        self.recorded: dict[str, RolloutOutcome] = {}

    async def __call__(self, outcome: RolloutOutcome, state: bytes, credential: str) -> None:
        self.seen.add(outcome.rollout_id)
        if outcome.rollout_id in self.refused:
            raise Unavailable("not now", retry_after=0.05)
        self.recorded.setdefault(outcome.rollout_id, outcome)


@pytest.fixture
async def journal(tmp_path: Path) -> tuple[Path, int]:
    """Return a journal's folder, and the port of the callbacks."""
    state, scene = tmp_path / "state", tmp_path / "scene"
    recorder, policy = Recorder(LATE), Policy(closed=True)
    async with (
        CallbackTrainer(policy, port=quiet_port(), recorder=recorder, tokens=TOKEN) as trainer,
        AgentServer([Adder()], port=0, config=ENGINE, state_dir=state) as server,
        RolloutClient(server.address) as client,
    ):
        for names in (DONE, LATE, OPEN):
            for name in names:
                await client.init(request_of(name), callback=trainer.callback())
            if names is DONE:
                await until(lambda: len(recorder.recorded) == len(DONE))
                checkpoint(state / "journal.db")
        await until(lambda: recorder.seen >= set(LATE) and policy.waiting == len(OPEN))
        copy_after_kill(state / "journal.db", scene)
        shutil.copytree(state / "credentials", scene / "credentials")
        return scene, trainer.port


TOKEN = "a-token-by-which-a-trainer-knows-its-callbacks"


def is_over(info: RolloutInfo) -> bool:
    """A lost log may have had the deliveries of DONE, whose credentials are gone since then."""
    return bool(info.end_time) and (not info.undelivered or info.rollout_id in DONE)


async def after_journal(folder: Path, port: int) -> dict[str, RolloutOutcome | str]:
    """Return all outcomes: delivered outcomes, and the server's answers for settled rollouts."""
    recorder, found = Recorder([]), {}
    async with (
        CallbackTrainer(Policy(closed=False), port=port, recorder=recorder, tokens=TOKEN),
        AgentServer([Adder()], port=0, config=ENGINE, state_dir=folder) as server,
        RolloutClient(server.address) as client,
    ):
        await until(lambda: is_empty(info async for info in client.rollouts() if not is_over(info)))
        for name in DONE:
            try:
                found[name] = (await client.get(name)).outcome
            except DataLoss as error:
                found[name] = str(error)
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
    return found | recorder.recorded


def check(found: dict, expected: dict, names: list[str], log: str, where: object) -> int:
    """Check that each rollout is unchanged, or is reported as damaged or lost. Return how many are not unchanged.

    A rollout that the trainer has lost with a part of its ledger ends FAILED, because its chats are unknown then.
    """
    other = 0
    for name in names:
        got = found.get(name)
        if isinstance(got, RolloutOutcome) and compared(got) == expected[name]:
            continue
        other += 1
        assert name in log or "What SQLite can read of it" in log, f"{where}: {name} is {got}, unreported"
        assert got is None or isinstance(got, str) or got.status == "FAILED", f"{where}: {name} became {compared(got)}"
    return other


async def flipped_journals(scene: Path, port: int, tmp_path: Path, caplog, count: int, seed: int) -> None:
    undamaged = await after_journal(shutil.copytree(scene, tmp_path / "undamaged"), port)
    expected = {name: compared(outcome) for name, outcome in undamaged.items()}
    assert {status for status, *_ in expected.values()} == {"COMPLETED"}
    assert set(expected) == {*DONE, *LATE, *OPEN}
    other = refused = 0
    for name, bit in random_bits(scene, "journal.db", count, seed):
        folder = shutil.copytree(scene, tmp_path / "flipped")
        flip(folder / name, bit)
        caplog.clear()
        try:
            sound = examine(folder / "journal.db", JOURNAL).is_sound
            found = await after_journal(folder, port)
        except JournalError:
            refused += 1
        else:
            changed = check(found, expected, [*DONE, *LATE, *OPEN], caplog.text, (name, bit))
            assert not (changed and sound), f"{(name, bit)}: doctor finds nothing"
            other += changed
        shutil.rmtree(folder)
    print(f"{count} bits: {refused} files refused, {other} outcomes reported as lost or damaged")


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_flipped_bit_in_the_journal(journal, tmp_path, caplog):
    await flipped_journals(*journal, tmp_path, caplog, 30, seed=1)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_300_flipped_bits_in_the_journal(journal, tmp_path, caplog):
    await flipped_journals(*journal, tmp_path, caplog, 300, seed=2)


# The ledger.


@pytest.fixture
async def ledger(tmp_path: Path) -> tuple[Path, int]:
    """Return a ledger with its server's journal, and the port of the server."""
    state, scene = tmp_path / "state", tmp_path / "scene"
    policy, path = Policy(closed=True), tmp_path / "ledger"
    async with (
        AgentServer([Adder()], port=quiet_port(), config=ENGINE, state_dir=state) as server,
        AsyncExitStack() as stack,
    ):
        trainer = await stack.enter_async_context(Trainer([server.address], policy, ledger=path))
        for outcome in [await trainer.rollout(request_of(name)) for name in DONE]:
            await outcome.confirm()
        for name in LATE[:2]:
            await trainer.rollout(request_of(name))
        checkpoint(path)
        for name in LATE[2:]:
            await trainer.rollout(request_of(name))
        running = [asyncio.create_task(trainer.rollout(request_of(name))) for name in OPEN]
        await until(lambda: policy.waiting == len(OPEN))
        copy_after_kill(path, scene)
        copy_after_kill(state / "journal.db", scene / "state")
        port = server.port
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return scene, port


async def after_ledger(folder: Path, port: int) -> dict[str, RolloutOutcome]:
    """Return all outcomes that the application gets, those of repeated requests included."""
    found: dict[str, RolloutOutcome] = {}
    async with (
        AgentServer([Adder()], port=port, config=ENGINE, state_dir=folder / "state"),
        Trainer([f"127.0.0.1:{port}"], Policy(closed=False), ledger=folder / "ledger") as trainer,
        asyncio.timeout(PATIENCE),
    ):
        async with aclosing(trainer.unconfirmed()) as outcomes:
            async for outcome in outcomes:
                found[outcome.rollout_id] = outcome
                await outcome.confirm()
        for name in {*LATE, *OPEN} - set(found):
            found[name] = await trainer.rollout(request_of(name))
    return found


async def flipped_ledgers(scene: Path, port: int, tmp_path: Path, caplog, count: int, seed: int) -> None:
    undamaged = await after_ledger(shutil.copytree(scene, tmp_path / "undamaged"), port)
    expected = {name: compared(outcome) for name, outcome in undamaged.items()}
    assert {status for status, *_ in expected.values()} == {"COMPLETED"}
    assert set(expected) == {*LATE, *OPEN}
    other = refused = 0
    for name, bit in random_bits(scene, "ledger", count, seed):
        folder = shutil.copytree(scene, tmp_path / "flipped")
        flip(folder / name, bit)
        caplog.clear()
        try:
            sound = examine(folder / "ledger", LEDGER).is_sound
            found = await after_ledger(folder, port)
        except LedgerError:
            refused += 1
        else:
            changed = check(found, expected, [*LATE, *OPEN], caplog.text, (name, bit))
            assert not (changed and sound), f"{(name, bit)}: doctor finds nothing"
            assert not sound or not set(found) & set(DONE), f"{(name, bit)}: what was confirmed is handed out again"
            other += changed
        shutil.rmtree(folder)
    print(f"{count} bits: {refused} files refused, {other} outcomes reported as lost or damaged")


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_flipped_bit_in_the_ledger(ledger, tmp_path, caplog):
    await flipped_ledgers(*ledger, tmp_path, caplog, 30, seed=3)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_300_flipped_bits_in_the_ledger(ledger, tmp_path, caplog):
    await flipped_ledgers(*ledger, tmp_path, caplog, 300, seed=4)
