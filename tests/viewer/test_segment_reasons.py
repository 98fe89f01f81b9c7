"""Why a segment began, and what a chat was sampled with: on the pages of the viewer, and in `show`."""

import asyncio

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol.types import Segment, SplitReason, TokenBlock
from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.records.reading.phrases import split_text
from osmosis_grpc.server import AgentServer
from tests.callback_trainer import CallbackTrainer
from tests.viewer.conftest import CANARY, browsing, calling

USER = {"role": "user", "content": "hi"}
EMPTY = TokenBlock.of([], [])


def reason(split, drift=None):
    return split_text(Segment(ids=EMPTY.ids, logprobs=EMPTY.logprobs, mask_runs=(), split=split, drift_index=drift))


class Editor(RolloutAgentLoop):
    """Changes the reply, and has a temperature of its own."""

    name = "editor"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        await ctx.chat([USER], temperature=0.25)
        await ctx.chat([USER, {"role": "assistant", "content": "edited"}, USER], temperature=0.25)
        return ctx.complete(reward=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The state folder of a server that ran a rollout."""
    path = tmp_path_factory.mktemp("reasons")

    async def ran():
        security = ServerSecurity(admin_tokens=CANARY)
        async with (
            AgentServer([Editor()], port=0, state_dir=path, security=security) as server,
            CallbackTrainer(EchoPolicy()) as trainer,
            calling(server) as client,
        ):
            request = {"completion_params": {"temperature": 0.75}, "pin_completion_params": True}
            await client.init(rollout_id="edited", messages=[USER], callback=trainer.callback(), **request)
            await trainer.outcome("edited")

    asyncio.run(ran())
    return path


@pytest.mark.parametrize("split", SplitReason)
def test_each_reason_has_a_text_of_its_own(split):
    assert reason(split)
    assert [other for other in SplitReason if reason(other) == reason(split)] == [split]
    assert "17" in reason(split, drift=17)
    assert reason(None) == ""


async def test_the_pages_say_why_a_segment_began_and_what_the_agent_had_passed(folder):
    async with browsing(FolderSource(folder)) as viewer:
        segments = (await viewer.get("/rollout/tokens.json?id=edited")).json()["segments"]
        page = (await viewer.get("/rollout/tokens?id=edited")).text
        turn = (await viewer.get("/turn?id=edited&turn=2")).text
    why = reason(SplitReason.HISTORY_CHANGED)
    assert [each["why"] for each in segments] == ["", why]
    assert page.count(why) == 1
    assert "0.75" in turn
    assert "0.25" in turn
