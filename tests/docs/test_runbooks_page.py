"""docs/runbooks.md: its commands on a server with slow, failing and hanging rollouts find what the page says."""

import asyncio
import re

import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.trainer import RolloutRequest, Trainer
from tests.docs.pages import Block, Reader, blocks_of
from tests.processes import ROOT
from tests.waiting import until

PAGE = ROOT / "docs" / "runbooks.md"
AGENT = """
import asyncio

from osmosis_grpc.agent import RolloutAgentLoop, tool


@tool
async def search(text: str) -> str:
    '''Searches.'''
    await asyncio.sleep(0.3)
    return text


@tool
async def hang() -> str:
    '''Never returns.'''
    await asyncio.Event().wait()


class Sick(RolloutAgentLoop):
    name = "sick"
    tools = [search, hang]

    async def run(self, ctx):
        messages = await ctx.tool_loop(ctx.request.messages)
        if ctx.request.label == "fails":
            raise LookupError("the page is gone")
        return ctx.complete(messages, reward=1.0)
"""


def policy(request):
    name = "hang" if request.messages[0]["content"] == "hang" else "search"
    if len(request.messages) > 1:
        return answer(request, "found")
    call = {"id": "c1", "function": {"name": name, "arguments": "{}" if name == "hang" else '{"text": "a"}'}}
    made = answer(request, "")
    return type(made)(
        message={"role": "assistant", "content": "", "tool_calls": [call]},
        tokens=made.tokens,
        prompt_ids=made.prompt_ids,
    )


def requests(label, count, text="go"):
    message = {"role": "user", "content": text}
    return [RolloutRequest(rollout_id=f"{label}-{n}", messages=[message], label=label) for n in range(count)]


def section(name):
    """The bash blocks of a section."""
    headings = [(match[1], match.start()) for match in re.finditer(r"^## (.*)$", PAGE.read_text(), re.M)]
    lines = {title: PAGE.read_text().count("\n", 0, place) for title, place in headings}
    end = min((line for line in lines.values() if line > lines[name]), default=10**6)
    return [block for block in blocks_of(PAGE) if lines[name] < block.line <= end]


@pytest.mark.slow
@pytest.mark.timeout(200)
async def test_each_command_finds_what_the_page_says(tmp_path):
    pytest.importorskip("duckdb")
    (tmp_path / "sick.py").write_text(AGENT)
    with Reader(tmp_path) as reader:
        await reader.run(Block("bash", "osmosis-grpc serve -m sick:Sick\n", 0))

        async def printed(name):
            before = len(reader.output)
            for block in section(name):
                await reader.run(block)
            return "".join(reader.output[before:])

        async with Trainer([f"127.0.0.1:{reader.ports['50051']}"], policy) as trainer:
            outcomes = [outcome async for outcome in trainer.run([*requests("works", 3), *requests("fails", 2)])]
            assert sorted(outcome.status for outcome in outcomes) == ["COMPLETED"] * 3 + ["FAILED"] * 2
            hanging = [asyncio.ensure_future(trainer.rollout(each)) for each in requests("hangs", 2, "hang")]
            await until(lambda: len([server for server in trainer.servers if server.open == 2]) == 1)
            first = await printed("First look")
            assert "is ready" in first
            assert re.search(r"^osmosis_rollouts_running 2", first, re.M)
            assert re.search(r"^osmosis_attachments 1", first, re.M)
            slow = await printed("Rollouts are slow")
            assert float(re.search(r"^sick +5 +\S+ +\S+ +(\S+)", slow, re.M)[1]) >= 0.29, "the seconds in tools"
            assert float(re.search(r"^search +5 +(\S+)", slow, re.M)[1]) >= 0.29
            failed = await printed("Rollouts fail")
            assert re.search(r"^agent +AGENT_EXCEPTION +sick\.py:\d+ in Sick\.run +2 +fails-", failed, re.M), failed
            stalled = await printed("Rollouts hang")
            assert "tool hang" in stalled
            assert sorted(re.findall(r"(\S+): cancelled", stalled)) == ["hangs-0", "hangs-1"]
            assert {(await each).status for each in hanging} == {"CANCELLED"}
            assert "osmosis_draining 0" in await printed("New rollouts are refused")
            assert re.search(r"^ *False +7 ", await printed("The trainer gets no outcomes"), re.M)
            assert re.search(r"^sick +\w+ +[23] ", await printed("The disk fills up"), re.M)
            assert "journal" in await printed("The server restarts again and again")
