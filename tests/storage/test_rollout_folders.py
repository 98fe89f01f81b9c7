"""The folders of rollouts below a state folder: they are deleted with their rollouts, and over the budget."""

from osmosis_grpc.storage import MemoryJournal
from tests.storage.journals import opened
from tests.waiting import until


def fill(user, entry, size=10):
    folder = user.journal.rollout_folder(entry.sequence)
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(b"x" * size)
    return folder


def settled(user, name):
    entry = user.accept(name)
    user.end(name)
    user.deliver(name)
    return entry


async def test_a_sweep_deletes_the_folders_of_deleted_rollouts(tmp_path):
    async with opened(tmp_path) as user:
        gone, kept, running = settled(user, "gone"), settled(user, "kept"), user.accept("running")
        folders = [fill(user, entry) for entry in (gone, kept, running)]
        await user.all_reported()
        user.journal.forget("gone", 1)
        await user.commit()
        user.journal.sweep()
        await until(lambda: not folders[0].exists())
        assert [folder.exists() for folder in folders] == [False, True, True]


async def test_a_sweep_deletes_the_folders_of_the_oldest_rollouts_over_the_budget(tmp_path):
    budget = 1024 * 1024
    async with opened(tmp_path, budget=budget) as user:
        folders = [fill(user, settled(user, f"r{number}"), budget // 2) for number in range(4)]
        await user.all_reported()
        user.journal.sweep()
        await until(lambda: [folder.exists() for folder in folders] == [False, False, True, True])
        assert [bool(user.journal.find(f"r{number}")) for number in range(4)] == [True] * 4


async def test_a_folder_that_a_lost_journal_left_is_never_that_of_another_rollout(tmp_path):
    async with opened(tmp_path) as user:
        left = fill(user, user.accept("r1"))
        await user.all_reported()
    for path in tmp_path.glob("journal.db*"):
        path.unlink()
    async with opened(tmp_path) as user:
        assert not left.exists()
        assert user.journal.rollout_folder(user.accept("other").sequence) == left
        await user.all_reported()


def test_a_journal_in_memory_has_no_folders():
    assert MemoryJournal().rollout_folder(1) is None
