"""The journal and the ledger that each release wrote: this version opens them, and goes on where they end."""

import fcntl
import tempfile
from contextlib import aclosing
from pathlib import Path

import pytest

from osmosis_grpc import __version__
from osmosis_grpc.protocol.types import events
from osmosis_grpc.server import AgentServer
from osmosis_grpc.storage import Reader
from osmosis_grpc.storage.find_damage import examine
from osmosis_grpc.storage.journal.schema import JOURNAL
from osmosis_grpc.storage.ledger.rows import LEDGER
from osmosis_grpc.trainer import Trainer, TrainerConfig
from tests.storage.recorded import ADDRESS, CHATS, FOLDER, QUESTION, Policy, Recorded, unpack

RELEASES = sorted(FOLDER.glob("*.tar.gz"))


@pytest.fixture(params=RELEASES, ids=lambda path: path.name.removesuffix(".tar.gz"))
def release(request, tmp_path):
    unpack(request.param, tmp_path)
    return tmp_path


@pytest.fixture
def alone():
    """Only one test of the machine listens at ADDRESS."""
    with Path(tempfile.gettempdir(), "osmosis-test-recorded").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_this_version_is_recorded():
    assert FOLDER / f"{__version__}.tar.gz" in RELEASES, "run `python -m tests.storage.recorded`"


def test_each_row_of_a_release_is_sound_and_its_rollouts_are_listed(release):
    journal = examine(release / "state" / "journal.db", JOURNAL)
    assert (journal.is_sound, journal.sound["rollouts"]) == (True, 4)
    assert examine(release / "ledger.db", LEDGER).is_sound
    reader = Reader.look(release / "state")
    (completed,), (failed,) = reader.find("completed"), reader.find("failed")
    reader.close()
    assert (completed.init.request.label, completed.init.request.messages) == ("42", QUESTION)
    assert failed.outcome.failure.reason == "AGENT_EXCEPTION"


async def test_a_server_and_a_trainer_go_on_with_the_files_of_a_release(alone, release):
    policy = Policy(may_end=True)
    config = TrainerConfig(ttl=1e9)  # a release may be old
    async with (
        Trainer([], policy, listen=ADDRESS, ledger=release / "ledger.db", config=config) as trainer,
        AgentServer([Recorded()], port=0, connect=[trainer.address], state_dir=release / "state"),
    ):
        outcome = await trainer.rollout(rollout_id="open", messages=QUESTION)
        again = await trainer.rollout(rollout_id="left", messages=QUESTION)
        async with aclosing(trainer.events("completed", tokens=True)) as found:
            kinds = [event.kind async for event in found]
    assert (outcome.status, outcome.reward) == ("COMPLETED", 0.25)
    assert (again.status, again.attempt) == ("COMPLETED", 2)
    assert policy.asked == [("open", CHATS), *(("left", n + 1) for n in range(CHATS))]  # the others are recorded
    (segment,) = outcome.samples["main"].segments
    assert [token for token, own in zip(segment.ids, segment.mask(), strict=True) if own] == [1, 7, 2, 7, 3, 7]
    answered = [kind for kind in kinds if isinstance(kind, events.ChatAnswered)]
    assert [list(kind.response.tokens.ids) for kind in answered] == [[1, 7], [2, 7], [3, 7]]
