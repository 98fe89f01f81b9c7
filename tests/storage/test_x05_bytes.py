"""X5: what one owner leaves unsettled in the journal fills that owner's share, and no other's."""

from osmosis_grpc.types import events
from tests.storage.journals import keeping


async def test_x05_a_journal_full_of_one_owners_rollouts_has_room_for_others(tmp_path):
    async with keeping(tmp_path, budget=35_000) as kept:
        for number in range(4):
            assert kept.store.has_room("hostile")
            kept.accept(f"a{number}", owner="hostile")
            kept.append(events.Logged("x" * 9000), f"a{number}")
        assert not kept.store.has_room("hostile")
        accepted = 0
        while kept.store.has_room("other"):
            kept.accept(f"b{accepted}", owner="other")
            kept.append(events.Logged("x" * 3000), f"b{accepted}")
            accepted += 1
        assert accepted == 6, "half of the budget"
        await kept.all_told()
    async with keeping(tmp_path, budget=35_000) as kept:
        assert len(kept.store.unsettled()) == 10
        assert [kept.store.has_room(owner) for owner in ("hostile", "other", "third")] == [False, False, True]
        kept.numbers = {(f"a{n}", 1): 2 for n in range(4)}
        for number in range(4):
            kept.end(f"a{number}")
            kept.deliver(f"a{number}")
        await kept.all_told()
        assert [kept.store.has_room(owner) for owner in ("hostile", "other")] == [True, True]
