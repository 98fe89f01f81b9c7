"""Unsettled rollouts of one owner use only that owner's share of the journal."""

from osmosis_grpc.protocol.types import events
from tests.storage.journals import opened


async def test_a_journal_full_of_one_owners_rollouts_accepts_others(tmp_path):
    async with opened(tmp_path, budget=35_000) as user:
        for number in range(4):
            assert user.journal.has_room("hostile")
            user.accept(f"a{number}", owner="hostile")
            user.append(events.Logged("x" * 9000), f"a{number}")
        assert not user.journal.has_room("hostile")
        accepted = 0
        while user.journal.has_room("other"):
            user.accept(f"b{accepted}", owner="other")
            user.append(events.Logged("x" * 3000), f"b{accepted}")
            accepted += 1
        assert accepted == 6, "half of the budget"
        await user.all_reported()
    async with opened(tmp_path, budget=35_000) as user:
        assert len(user.journal.unsettled()) == 10
        assert [user.journal.has_room(owner) for owner in ("hostile", "other", "third")] == [False, False, True]
        user.numbers = {(f"a{n}", 1): 2 for n in range(4)}
        for number in range(4):
            user.end(f"a{number}")
            user.deliver(f"a{number}")
        await user.all_reported()
        assert [user.journal.has_room(owner) for owner in ("hostile", "other")] == [True, True]
