"""The tool that ends a rollout, and the tools by name."""

import pytest

from osmosis_grpc.protocol.errors import ToolArgumentError
from osmosis_grpc.tools.library import MAKERS, finish_tool, make_tool, needs_sandbox
from osmosis_grpc.tools.sandbox import LocalSandbox


@pytest.mark.row("ARL 44")
async def test_finish_returns_the_answer_its_reason_and_its_status():
    finish = finish_tool()
    assert await finish.run({"answer": "360"}) == {"answer": "360", "status": "success", "completed": True}
    got = await finish.run({"answer": "?", "reasoning": "no time", "status": "failed"})
    assert (got["status"], got["reasoning"]) == ("failed", "no time")
    with pytest.raises(ToolArgumentError, match="status"):
        await finish.run({"answer": "x", "status": "done"})
    with pytest.raises(ToolArgumentError, match="answer: is missing"):
        await finish.run({})


@pytest.mark.row("ARL 44")
async def test_each_tool_is_made_by_its_name():
    async with LocalSandbox() as box:
        for name in MAKERS:
            assert make_tool(name, box).name == name
        assert (await make_tool("calculator", precision=1).run({"expression": "2 / 3"}))["result"] == 0.7
        await box.write_file("f", b"x\n" * 9)
        got = await make_tool("search", box, max_results=5).run({"command": "search_text", "pattern": "x"})
        assert len(got["matches"]) == 5
    assert [name for name in MAKERS if not needs_sandbox(name)] == ["calculator", "finish"]


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("browser", {}, "there is no tool 'browser'; the tools are calculator, bash"),
        ("search", {"limit": 5}, "limit: the tool search has no such option; it has max_results"),
        ("search", {}, "sandbox: the tool search needs one"),
    ],
)
@pytest.mark.row("ARL 44")
def test_a_wrong_name_or_option_is_named(name, options, problem):
    with pytest.raises(ValueError, match=problem):
        make_tool(name, **options)
