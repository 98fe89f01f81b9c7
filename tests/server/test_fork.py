"""A fork gets the recorded replies of its original up to a chat, and live replies from there on."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, closing

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.protocol.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from osmosis_grpc.protocol.types import FailureReason, OutcomeStatus, RolloutFilter, SplitReason, events
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.storage import Reader
from osmosis_grpc.trainer import Credentials, Fork, RolloutClient, Trainer, pad
from osmosis_grpc.trainer.chats.rollout_cache import RolloutCache
from tests.server.forking import CHATS, PARENTS, USER, Brancher, fork_at, policy, sampled, tokens_of, trained, user
from tests.waiting import until

ENDS = {"outbox_delay": (0.02, 0.1), "trainer_grace": 0.2}


class Counting:
    """The policy, with the chats that it was asked."""

    def __init__(self):
        self.asked = []

    async def __call__(self, request):
        self.asked.append((request.rollout_id, request.sample, request.chat_number))
        return await policy(request)


@asynccontextmanager
async def connected(kind, loops, answers, folder=None):
    """A server, and a trainer that reaches it in one of three ways."""
    options = {"port": 0, "config": ServerConfig(**ENDS), "state_dir": folder}
    if kind == "accept":
        async with (
            Trainer([], answers, listen="127.0.0.1:0") as trainer,
            AgentServer(loops, connect=[trainer.address], **options) as server,
        ):
            yield server, trainer
        return
    async with AgentServer(loops, **options) as server, Trainer([server.address], answers, transport=kind) as trainer:
        yield server, trainer


async def both(trainer, name, fork="f1", **fields):
    """The outcomes of an original and of its fork from a chat."""
    original = await trainer.rollout(rollout_id="r1", messages=[USER])
    return original, await trainer.rollout(rollout_id=fork, messages=[USER], fork=fork_at(name), **fields)


@pytest.mark.parametrize("kind", ["attach", "callback", "accept"])
@pytest.mark.parametrize("at", range(len(CHATS)), ids=lambda at: " ".join(map(str, CHATS[at])))
async def test_a_fork_at_each_chat_trains_on_its_live_replies_only(tmp_path, kind, at):
    answers = Counting()
    async with connected(kind, [Brancher()], answers, tmp_path) as (_, trainer):
        original, fork = await both(trainer, CHATS[at])
    prefix, live = CHATS[: at + 1], CHATS[at + 1 :]
    assert answers.asked == [("r1", *name) for name in CHATS] + [("f1", *name) for name in live]
    assert (original.status, fork.status) == (OutcomeStatus.COMPLETED, OutcomeStatus.COMPLETED)
    segments = trained(fork)
    assert set(segments) == set(live)
    assert set(trained(original)) == set(CHATS), "the original is trained on the prefix"
    for name in live:
        parent = (name[0], PARENTS.get(name, 0))
        if parent in prefix:
            known = tokens_of(parent, original)
            segment = segments[name]
            assert segment.ids[: len(known)].tolist() == known.tolist()
            assert not segment.mask()[: len(known)].any()
            assert (segment.drift_index, segment.split) == (None, SplitReason.RECORDED)
    chats = {(name, c.chat_number): len(c.tokens.ids) for name, s in original.samples.items() for c in s.chats}
    own = {(name, c.chat_number): len(c.tokens.ids) for name, s in fork.samples.items() for c in s.chats}
    assert set(own) == set(live)
    assert sampled(original) + sampled(fork) == sum(chats.values()) + sum(own.values())
    assert fork.metrics.num_llm_calls == len(live)
    assert fork.metrics.response_tokens == sum(own.values())
    for name, sample in fork.samples.items():
        has_live = any(of == name for of, _ in live)
        assert sample.trainable is has_live
        assert bool(sample.not_trainable_reason) is not has_live
    contents = [message["content"] for message in fork.samples["main"].messages]
    ids = ["r1" if name in prefix else "f1" for name in (("main", 1), ("main", 2), ("main", 4))]
    assert contents == ["begin", f"{ids[0]} main 1", "go on", f"{ids[1]} main 2", "the end", f"{ids[2]} main 4"]
    if live:
        batch = pad([original, fork])
        assert int(batch.loss_mask.sum()) == sampled(original) + sampled(fork)


async def test_the_events_of_a_fork_have_its_prefix_and_its_origin(tmp_path):
    async with connected("attach", [Brancher()], policy, tmp_path) as (server, trainer):
        await both(trainer, ("main", 2))
        async with RolloutClient(server.address) as client:
            seen = [event.kind async for event in client.events("f1")]
            info = await client.get("f1")
            listed = [row.rollout_id async for row in client.rollouts(where=RolloutFilter(forked_from="r1"))]
            others = [row.rollout_id async for row in client.rollouts(where=RolloutFilter(forked_from="r2"))]
            features = (await client.info()).features
    answered = {(k.sample, k.chat_number): k.forked for k in seen if isinstance(k, events.ChatAnswered)}
    assert answered == {name: name in CHATS[:2] for name in CHATS}
    assert seen[0].init.request.fork == info.fork == Fork("r1", 2, "main", 1)
    assert [len(k.response.tokens.ids) > 0 for k in seen if isinstance(k, events.ChatAnswered)] == [True] * 6
    closed = [k.chats for k in seen if isinstance(k, events.SegmentClosed)]
    assert closed == [(3,), (4,), (1, 2)]
    assert info.outcome.samples["main"].segments[0].sampled
    assert (listed, others) == (["f1"], [])
    assert "fork" in features


async def test_a_fork_of_a_fork(tmp_path):
    answers = Counting()
    async with connected("attach", [Brancher()], answers, tmp_path) as (_, trainer):
        original, first = await both(trainer, ("main", 2))
        second = await trainer.rollout(rollout_id="f2", messages=[USER], fork=fork_at(("main", 3), "f1"))
    assert [name for name in answers.asked if name[0] == "f2"] == [("f2", "helper", 2), ("f2", "main", 4)]
    assert [m["content"] for m in second.samples["main"].messages] == [
        "begin",
        "r1 main 1",
        "go on",
        "r1 main 2",
        "the end",
        "f2 main 4",
    ]
    known = tokens_of(("main", 2), original)
    segment = trained(second)["main", 4]
    assert segment.ids[: len(known)].tolist() == known.tolist()
    assert not segment.mask()[: len(known)].any()
    assert [len(trained(outcome)) for outcome in (original, first, second)] == [6, 4, 2]


async def test_equal_forks_of_one_original_are_a_group(tmp_path):
    """Several forks start at one chat, each with live replies of its own."""
    async with connected("attach", [Brancher()], policy, tmp_path) as (_, trainer):
        await trainer.rollout(rollout_id="r1", messages=[USER])
        requests = [{"rollout_id": f"f{n}", "messages": [USER], "fork": fork_at(("main", 2))} for n in range(4)]
        forks = await asyncio.gather(*(trainer.rollout(**fields) for fields in requests))
        again = await asyncio.gather(*(trainer.rollout(**requests[0], attempt=2) for _ in range(2)))
    assert {fork.samples["main"].messages[-1]["content"] for fork in forks} == {f"f{n} main 4" for n in range(4)}
    assert again[0].attempt == 2


class Waiting(Brancher):
    """Waits between its first and second chat."""

    name = "waiting"

    def __init__(self):
        self.may = asyncio.Event()

    async def run(self, ctx):
        messages = [USER]
        messages.append((await ctx.chat(messages)).message)
        await self.may.wait()
        messages.append(user("go on"))
        messages.append((await ctx.chat(messages)).message)
        return ctx.complete(messages, reward=1.0)


async def test_a_rollout_that_still_runs_can_be_forked_at_an_answered_chat(tmp_path):
    agent = Waiting()
    async with connected("attach", [agent], policy, tmp_path) as (_, trainer):
        running = asyncio.create_task(trainer.rollout(rollout_id="r1", messages=[USER]))
        async for event in trainer.events("r1"):
            if isinstance(event.kind, events.ChatAnswered):
                break
        with pytest.raises(FailedPrecondition, match=r"spec.fork.chat: chat 2 of sample 'main' .* has no reply yet"):
            await trainer.rollout(rollout_id="f0", messages=[USER], fork=fork_at(("main", 2)))
        fork = asyncio.create_task(trainer.rollout(rollout_id="f1", messages=[USER], fork=fork_at(("main", 1))))
        async for event in trainer.events("f1"):
            if isinstance(event.kind, events.ChatAnswered):
                agent.may.set()
        assert (await running).status is (await fork).status is OutcomeStatus.COMPLETED
    assert (await fork).messages[1]["content"] == "r1 main 1"


class Fixed(RolloutAgentLoop):
    """Asks one chat, and is not replayable."""

    name = "fixed"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        return ctx.complete([(await ctx.chat([USER])).message], reward=0.0)


@pytest.mark.parametrize("folder", [True, False], ids=["on disk", "in memory"])
async def test_a_fork_that_cannot_start_is_refused_by_name(tmp_path, folder):
    loops = [Brancher(), Fixed(), Waiting()]
    async with connected("attach", loops, policy, tmp_path if folder else None) as (_, trainer):
        fields = {"messages": [USER], "agent_loop": "brancher"}
        await trainer.rollout(rollout_id="r1", **fields)
        await trainer.rollout(rollout_id="x1", messages=[USER], agent_loop="fixed")

        async def refused(kind, match, fork, **other):
            with pytest.raises(kind, match=match):
                await trainer.rollout(rollout_id="f", **fields | other, fork=fork)

        await refused(NotFound, "spec.fork.rollout_id: there is no rollout r9 attempt 1 here", Fork("r9", 1))
        await refused(NotFound, "no rollout r1 attempt 2 here", Fork("r1", 1, attempt=2))
        await refused(InvalidArgument, r"spec.fork.chat: rollout r1 has no reply to chat 9 .* main 1, main 2, helper 1",
                      Fork("r1", 9))  # fmt: skip
        await refused(InvalidArgument, "no reply to chat 1 of sample 'nobody'", Fork("r1", 1, "nobody"))
        await refused(InvalidArgument, "spec.fork.rollout_id: r1 ran agent loop 'brancher', not 'waiting'",
                      Fork("r1", 1), agent_loop="waiting")  # fmt: skip
        await refused(FailedPrecondition, "agent loop 'fixed' is not replayable", Fork("x1", 1), agent_loop="fixed")
        await refused(InvalidArgument, "spec.fork.rollout_id: is the rollout itself", Fork("f", 1))
        await refused(InvalidArgument, "fork.chat.chat_number: 0 is not a number from 1", Fork("r1", 0))
        await refused(InvalidArgument, "fork: is a str, not a Fork", "r1")
        assert (await trainer.rollout(rollout_id="f", **fields, fork=Fork("r1", 1))).reward == 1.0


async def test_a_rollout_of_another_owner_cannot_be_forked(tmp_path):
    security = ServerSecurity(["mine=secret-1-0123456789", "theirs=secret-2-0123456789"])
    async with AgentServer([Brancher()], port=0, security=security, state_dir=tmp_path) as server:
        async with Trainer([server.address], policy, credentials=Credentials(token="secret-1-0123456789")) as mine:
            await mine.rollout(rollout_id="r1", messages=[USER])
        async with Trainer([server.address], policy, credentials=Credentials(token="secret-2-0123456789")) as theirs:
            with pytest.raises(NotFound, match="there is no rollout r1"):
                await theirs.rollout(rollout_id="f1", messages=[USER], fork=fork_at(("main", 1)))


async def test_a_fork_that_asks_something_else_ends_replay_diverged(tmp_path):
    async with connected("attach", [Brancher()], policy, tmp_path) as (_, trainer):
        await trainer.rollout(rollout_id="r1", messages=[USER])
        outcome = await trainer.rollout(rollout_id="f1", messages=[user("other")], fork=fork_at(("main", 2)))
    assert outcome.failure.reason is FailureReason.REPLAY_DIVERGED
    assert "chat 1 of sample 'main' is not what rollout r1 asked" in outcome.failure.message


async def test_a_chat_that_failed_in_the_original_fails_again(tmp_path):
    asked = []

    async def refuses(request):
        asked.append((request.rollout_id, request.chat_number))
        if asked == [("r1", 1)]:
            raise FailedPrecondition("too long")
        return await policy(request)

    class Tries(Brancher):
        name = "tries"

        async def run(self, ctx):
            messages = [USER]
            try:
                await ctx.chat(messages)
            except FailedPrecondition as error:
                messages.append(user(str(error)))
            for _ in range(2):
                messages.append((await ctx.chat(messages)).message)
                messages.append(user("go on"))
            return ctx.complete(messages, reward=1.0)

    async with connected("attach", [Tries()], refuses, tmp_path) as (_, trainer):
        await trainer.rollout(rollout_id="r1", messages=[USER])
        fork = await trainer.rollout(rollout_id="f1", messages=[USER], fork=fork_at(("main", 2)))
    assert fork.status is OutcomeStatus.COMPLETED, fork.failure
    assert asked == [("r1", 1), ("r1", 2), ("r1", 3), ("f1", 3)]
    assert fork.messages[1]["content"] == "too long"


async def test_a_trainer_without_the_chats_completes_a_fork_from_its_events(tmp_path):
    """It gets the recorded replies, too, and does not train on them."""
    async with connected("attach", [Brancher()], policy, tmp_path) as (server, trainer):
        _, outcome = await both(trainer, ("main", 2))
        async with RolloutClient(server.address) as client:
            trajectory = [event async for event in client.events("f1")]
    with closing(Reader.look(tmp_path)) as reader:
        (entry,) = reader.find("f1")
    assert all(segment.referred for sample in entry.outcome.samples.values() for segment in sample.segments)
    cache = RolloutCache(policy).rollout("f1", 1, 0.0)
    assert cache.lacks(entry.outcome)
    cache.restore(trajectory)
    assert not cache.lacks(entry.outcome)
    completed = cache.complete(entry.outcome)
    for name, sample in outcome.samples.items():
        assert completed.samples[name].segments == sample.segments
        assert completed.samples[name].messages == sample.messages
        assert completed.samples[name].trainable is True


async def test_a_trainer_with_a_ledger_continues_a_fork(tmp_path):
    sampled_chats, may = [], asyncio.Event()

    async def answers(request):
        sampled_chats.append((request.rollout_id, request.sample, request.chat_number))
        if request.rollout_id == "f1" and request.chat_number == 4 and not may.is_set():
            await asyncio.Event().wait()
        return await policy(request)

    options = {"ledger": tmp_path / "ledger.db"}
    async with AgentServer([Brancher()], port=0, state_dir=tmp_path / "state") as server:
        async with Trainer([server.address], answers, **options) as first:
            original = await first.rollout(rollout_id="r1", messages=[USER])
            await original.confirm()
            fork = {"rollout_id": "f1", "messages": [USER], "fork": fork_at(("main", 2))}
            running = asyncio.create_task(first.rollout(**fork))
            await until(lambda: ("f1", "main", 4) in sampled_chats)
        with pytest.raises(Unavailable):
            await running
        may.set()
        async with Trainer([server.address], answers, **options) as second:
            outcome = await second.rollout(**fork)
    segments = trained(outcome)
    assert set(segments) == set(CHATS[2:])
    known = tokens_of(("main", 2), original)
    assert segments["main", 4].ids[: len(known)].tolist() == known.tolist()
    assert Counter(sampled_chats) == Counter(
        [("r1", *name) for name in CHATS] + [("f1", *name) for name in CHATS[2:]] + [("f1", "main", 4)]
    )


async def test_a_new_trainer_finds_the_server_of_the_original(tmp_path):
    """It asks one server after the other. A rollout that no server has is refused."""
    async with (
        AgentServer([Brancher()], port=0, state_dir=tmp_path / "one") as one,
        AgentServer([Brancher()], port=0, state_dir=tmp_path / "two") as two,
    ):
        for server, name in ((one, "r1"), (two, "r2")):
            async with Trainer([server.address], policy) as trainer:
                await trainer.rollout(rollout_id=name, messages=[USER])
        async with Trainer([one.address, two.address], policy) as trainer:
            for number, name in enumerate(("r1", "r2", "r2", "r1")):
                outcome = await trainer.rollout(rollout_id=f"f{number}", messages=[USER], fork=Fork(name, 2))
                assert outcome.status is OutcomeStatus.COMPLETED
            with pytest.raises(NotFound, match="there is no rollout r3 attempt 1 here"):
                await trainer.rollout(rollout_id="f9", messages=[USER], fork=Fork("r3", 2))


async def test_a_fork_goes_to_the_server_of_its_original(tmp_path):
    async with (
        AgentServer([Brancher()], port=0, state_dir=tmp_path / "one") as one,
        AgentServer([Brancher()], port=0, state_dir=tmp_path / "two") as two,
        Trainer([one.address, two.address], policy) as trainer,
    ):
        for number in range(6):
            await trainer.rollout(rollout_id=f"r{number}", messages=[USER])
            fork = Fork(f"r{number}", 2)
            outcome = await trainer.rollout(rollout_id=f"f{number}", messages=[USER], fork=fork)
            assert outcome.status is OutcomeStatus.COMPLETED
