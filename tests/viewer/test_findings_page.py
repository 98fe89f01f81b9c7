"""The page of findings: what failed, which tool was slow, where tokens drifted, which groups have no variance."""

import asyncio
import re

import pytest

from osmosis_grpc.cli.view_demo import CUT, DRIFTING, write_demo
from osmosis_grpc.protocol.types import Group, RolloutInfo, RolloutState
from osmosis_grpc.protocol.types.rollout_info import Activity
from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.viewer.calls import Calls, Drift, ToolTime
from osmosis_grpc.viewer.findings import findings
from tests.callback_trainer import CallbackTrainer
from tests.viewer.conftest import MARKUP, browsing, calling


def row(name, reward=None, *, group="g", state=RolloutState.COMPLETED, reason="", progress=0.0):
    ended = state is not RolloutState.RUNNING
    return RolloutInfo(
        rollout_id=name,
        attempt=1,
        agent_loop="walker",
        state=state,
        activity=Activity("ended", 1.0),
        group=Group(group, 0, 2),
        accept_time=0.0,
        end_time=1.0 if ended else None,
        reward=reward,
        failure_reason=reason,
        failure_summary=reason and "it failed",
        progress_time=None if ended else progress,
    )


def test_failures_with_the_same_message_are_one_finding():
    rows = [row("a", reason="AGENT_EXCEPTION"), row("b", reason="TOOL_EXCEPTION"), row("c", reason="AGENT_EXCEPTION")]
    found = findings(rows, {}, 2.0).failures
    assert [(each.reason, [info.rollout_id for info in each.rows]) for each in found] == [
        ("AGENT_EXCEPTION", ["a", "c"]),
        ("TOOL_EXCEPTION", ["b"]),
    ]


def test_a_group_is_without_variance_when_all_its_rollouts_have_ended_with_one_reward():
    rows = [row("a", 1.0), row("b", 1.0), row("c", 1.0, group="h"), row("d", 0.0, group="h"), row("e", group="one")]
    found = findings(rows, {}, 2.0)
    assert [(each.group, each.reward) for each in found.equal] == [("g", 1.0)]
    assert found.groups == 2
    running = row("f", state=RolloutState.RUNNING)
    assert findings([*rows, running], {}, 2.0).equal == ()


def test_rewards_that_differ_by_rounding_are_a_group_without_variance():
    group = [row(name, reward, group="g") for name, reward in (("a", 1.0), ("b", 0.99999994))]
    assert len(findings(group, {}, 2.0).equal) == 1


def test_tools_drifts_and_cut_replies_come_from_the_calls():
    tools = (ToolTime("slow", 3.0, "main", 2), ToolTime("fast", 0.1, "main", 1, "KeyError"))
    calls = {("a", 1): Calls(tools=tools, truncated=True, drifts=(Drift("main", 2, 7),)), ("b", 1): Calls()}
    found = findings([row("a", 1.0), row("b", 0.0)], calls, 2.0)
    assert [(tool.name, tool.slowest.turn, tool.raised) for tool in found.tools] == [("slow", 2, 0), ("fast", 1, 1)]
    assert [info.rollout_id for info, _ in found.drifted] == ["a"]
    assert [info.rollout_id for info in found.truncated] == ["a"]


def test_a_running_rollout_without_an_event_for_a_minute_has_stalled():
    rows = [row("a", state=RolloutState.RUNNING, progress=1.0), row("b", state=RolloutState.RUNNING, progress=99.0)]
    assert [info.rollout_id for info in findings(rows, {}, 100.0).stalled] == ["a"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The state folder of the demonstration."""
    folder = tmp_path_factory.mktemp("demo")
    asyncio.run(write_demo(folder))
    return folder


async def test_a_page_follows_with_the_filters_of_its_address(demo):
    async with browsing(FolderSource(demo)) as client:
        for address, query in (("/findings", ""), ("/findings?limit=3&agent=a", "agent=a&amp;limit=3")):
            text = (await client.get(address)).text
            assert f'href="/?{query}"' in text


async def test_the_demo_has_something_of_each_kind(demo):
    async with browsing(FolderSource(demo)) as client:
        text = (await client.get("/findings")).text
        sections = re.findall(r'<section class="card">(.*?)</section>', text, re.DOTALL)
        failed, tools, drifted, equal, cut, stalled = sections
        assert {"demo-failing-1", "demo-failing-3"} == set(re.findall(r">(demo-[^<]+)</a>", failed))
        assert tools.index("search") < tools.index("population")
        assert f"id={DRIFTING}&amp;attempt=1&amp;sample=main#drift" in drifted
        assert re.findall(r">(demo-[^<]+)</a>", equal) == ["demo-equal"]
        assert re.findall(r">(demo-[^<]+)</a>", cut) == [CUT]
        assert "No running rollout" in stalled
        assert "demo-equal" not in (await client.get("/findings?group=demo-mixed")).text


async def test_the_findings_follow_a_server_and_are_read_once_in_a_while(following):
    server, client = following

    async def fails(request):
        raise LookupError("the model has gone")

    async with client.stream("GET", "/findings/stream") as stream:
        lines = stream.aiter_lines()
        async for line in lines:
            if "1</span> failed" in line:
                break
        async with CallbackTrainer(fails) as trainer, calling(server) as rollouts:
            messages = [{"role": "user", "content": "Hi"}]
            await rollouts.init(rollout_id="newest", messages=messages, callback=trainer.callback())
            async for line in lines:
                if "2</span> failed" in line:
                    break
            else:
                raise AssertionError("the stream has ended")


async def test_the_whole_prompt_of_a_turn_is_what_the_model_saw(demo):
    async with browsing(FolderSource(demo)) as client:
        text = (await client.get("/turn?id=demo-failing-1&turn=3")).text
        assert "the model saw <b>5</b> messages and <b>2</b> tools: population, search" in text
        roles = re.findall(r'<div class="message (\w+)">', text[: text.index("<h2>Reply</h2>")])
        assert roles == ["user", "assistant", "tool", "assistant", "tool"]
        assert "population(city=Atlantis)" in text


async def test_hostile_texts_are_escaped(viewer):
    for path in ("/findings", "/turn?id=hostile&turn=2"):
        text = (await viewer.get(path)).text
        assert MARKUP not in text
        assert "&lt;img" in text
