"""The page of a group, over HTTP, with the rollouts of a real server."""

import asyncio
import re

import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import Activity, Annotation, Group, RolloutInfo, RolloutState
from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.rollout import RolloutAgentLoop, tool
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import RolloutClient
from osmosis_grpc.viewer.annotations import Fate
from osmosis_grpc.viewer.groups import Comparison, Lane
from tests.callback_trainer import CallbackTrainer
from tests.viewer.conftest import browsing

REWARDS = {"a0": 0.25, "a1": 0.75, "a2": 0.25, "a3": None, "flat0": 1.0, "flat1": 1.0, "same0": 0.0, "same1": 1.0}
"""The rollouts and their rewards. The letters of an id name its group."""
SIZES = {"a": 4, "flat": 2, "same": 2}
TURNS = 4


@tool
async def add(x: float, y: float) -> float:
    """Adds two numbers."""
    return x + y


class Adder(RolloutAgentLoop):
    """Calls its tool until the model has enough, and returns the reward of the label."""

    name = "adder"
    tools = (add,)

    async def run(self, ctx):
        messages = await ctx.tool_loop(ctx.request.messages)
        label = ctx.request.label
        return ctx.complete(messages) if label is None else ctx.complete(messages, reward=float(label))


async def policy(request):
    """Answer in TURNS turns. The rollouts of group `a` differ first in turn 3, where a1 and a3 add other numbers."""
    turn, name = request.chat_number, request.rollout_id
    version = "v1" if turn < 3 else "v2"
    if turn == TURNS:
        return answer(request, "Done." if name.startswith("same") else f"Done by {name}.", version=version)
    other = turn == 3 and name in ("a1", "a3")
    arguments = '{"x": 2, "y": 2}' if other else '{"x": 1, "y": 2}' if name != "a2" else '{"y": 2, "x": 1}'
    call = {"id": f"{name}-{turn}", "type": "function", "function": {"name": "add", "arguments": arguments}}
    return answer(request, {"role": "assistant", "content": "", "tool_calls": [call]}, version=version)


async def run(path):
    """Run all rollouts, and annotate two."""
    async with (
        AgentServer([Adder()], port=0, state_dir=path) as server,
        CallbackTrainer(policy) as trainer,
        RolloutClient(server.address) as client,
    ):
        for name, reward in REWARDS.items():
            group = name.rstrip("0123456789")
            await client.init(
                rollout_id=name,
                messages=[{"role": "user", "content": "Add 1 and 2."}],
                callback=trainer.callback(),
                group=Group(group, int(name.removeprefix(group)), SIZES[group]),
                label=None if reward is None else str(reward),
                max_turns=9,
            )
        for name in REWARDS:
            await trainer.outcome(name)
        await client.annotate("a0", Annotation(trained=True, advantage=-0.5, weight_step="7"))
        await client.annotate("a2", Annotation(reward=0.5))
        await client.annotate(
            "a0", Annotation(id="rewards:exact@1a", author="eval", reward=0, labels=("rewards:exact",))
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The state folder of the groups."""
    path = tmp_path_factory.mktemp("grouped")
    asyncio.run(run(path))
    return path


def row(text, rollout_id):
    """Return the row of a rollout in the table of lanes."""
    return re.search(rf'<tr data-id="{rollout_id} 1">.*?</tr>', text, re.DOTALL)[0]


async def test_the_rewards_of_a_group_with_mean_and_deviation(viewer):
    text = (await viewer.get("/group?id=a")).text
    assert re.findall(r'<tr data-id="(\w+) 1">', text) == ["a0", "a1", "a2", "a3"]
    assert "mean reward <b>0.5</b>" in text  # 0.25, 0.75, and the 0.5 that replaces 0.25
    assert "deviation <b>0.25</b>" in text
    assert "1 without a reward" in text
    assert "NO VARIANCE" not in text
    assert "was 0.25" in row(text, "a2")
    assert "was " not in row(text, "a0"), "a score corrects nothing"
    widths = [re.search(r'class="reward" x="0.0" width="([\d.]+)"', row(text, name)) for name in ("a0", "a1", "a3")]
    assert [found and float(found[1]) for found in widths] == [333.3, 1000.0, None]
    assert '<a href="/group?id=a"' in (await viewer.get("/?group=a")).text


async def test_a_score_is_beside_the_reward(viewer):
    text = (await viewer.get("/rollout?id=a0")).text
    assert "corrected to" not in text
    assert re.search(r"<dt>score rewards:exact</dt><dd>0</dd>", text)


async def test_a_group_without_variance_has_a_badge(viewer):
    assert "NO VARIANCE: all rewards are 1" in (await viewer.get("/group?id=flat")).text


async def test_the_first_turn_that_differs_is_highlighted_by_value(viewer):
    text = (await viewer.get("/group?id=a")).text
    assert re.findall(r'<tr class="differs" id="differs"><th scope="row">(\d+)', text) == ["3"]
    line = re.search(r'<tr class="differs".*?</tr>', text, re.DOTALL)[0]
    assert re.findall(r'<b class="letter">(.)</b>', line) == ["A", "B", "A", "B"]  # a2 has the keys in another order
    assert 'href="/rollout?id=a1&amp;attempt=1#turn=3"' in line
    same = (await viewer.get("/group?id=same")).text
    assert 'class="differs"' not in same
    assert "all replies are equal" in same


async def test_a_sample_that_nothing_uses_is_marked(viewer):
    text = (await viewer.get("/group?id=a")).text
    assert "sample main unused: no reward and no advantage" in row(text, "a3")
    assert "unused" not in row(text, "a0")


@pytest.mark.parametrize(
    ("length", "seconds"),
    [
        (0.0123, [0, 0.005, 0.01]),
        (3.7, [0, 1, 2, 3]),
        (12.0, [0, 5, 10]),
        (50.0, [0, 15, 30, 45]),
        (86_400.0 * 9, [0, 86_400 * 3, 86_400 * 6, 86_400 * 9]),
    ],
)
def test_the_time_axis_has_round_times_where_they_are(length, seconds):
    info = RolloutInfo(
        rollout_id="r",
        attempt=1,
        agent_loop="a",
        state=RolloutState.COMPLETED,
        activity=Activity("ended", length),
        accept_time=0.0,
        end_time=length,
    )
    lane = Lane(info, (), (), None, Fate(None, "", "", None, None, None), ())
    ticks = Comparison((lane,), length, True).ticks
    assert [tick for _, tick in ticks] == pytest.approx(seconds)
    assert [at for at, _ in ticks] == pytest.approx([100 * tick / length for tick in seconds], abs=0.01)


async def test_a_lane_has_the_policy_versions_and_its_delivery(viewer):
    text = (await viewer.get("/group?id=a")).text
    lanes = {name: re.search(r'<td class="lane">.*?</td>', row(text, name), re.DOTALL)[0] for name in ("a0", "a1")}
    for lane in lanes.values():
        kinds = re.findall(r'<rect class="([^"]+)"', lane)
        assert kinds.count("model v0") == kinds.count("model v1") == 2
        assert kinds.count("tools") == 3
        assert {"queue", "delivery", "delivered"} <= set(kinds)
    assert 'class="consumed"' in lanes["a0"]
    assert 'class="consumed"' not in lanes["a1"]
    assert re.findall(r"</i>model version (v\d)", text) == ["v1", "v2"]
    for left, width in re.findall(r'x="([\d.]+)" width="([\d.]+)"', text):
        assert float(left) + float(width) <= 1000.1


async def test_an_unknown_group_is_named(viewer):
    page = await viewer.get("/group?id=nothing")
    assert page.status_code == 404
    assert "there is no rollout of group nothing" in page.text


async def test_a_group_is_followed_until_its_end(tmp_path, hasty):
    release = asyncio.Event()

    async def waits(request):
        await release.wait()
        return answer(request, "Done.")

    async with (
        AgentServer([Adder()], port=0, state_dir=tmp_path) as server,
        CallbackTrainer(waits) as trainer,
        RolloutClient(server.address) as client,
        browsing(FolderSource(tmp_path)) as viewer,
    ):
        messages = [{"role": "user", "content": "Hi"}]
        for index in range(2):
            await client.init(
                rollout_id=f"w{index}", messages=messages, callback=trainer.callback(), group=Group("w", index, 2)
            )
        async with viewer.stream("GET", "/group/stream?id=w") as stream:
            lines = stream.aiter_lines()
            async for line in lines:
                if "RUNNING" in line:
                    break
            release.set()
            text = "".join([line async for line in lines])
    assert "COMPLETED" in text
    assert "event: ended" in text
