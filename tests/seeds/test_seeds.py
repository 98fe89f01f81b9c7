"""Every Python block of seed pages 000 and 001 runs as the page has it, with only osmosis_ai renamed to osmosis_grpc.

The blocks stand in blocks/, in the page's order; preamble.py has the names that a page leaves to its reader.
"""

import ast
import inspect
import re
from pathlib import Path

import pytest

from osmosis_grpc.policies import EchoPolicy, ToolCallingMock
from osmosis_grpc.protocol.types import events
from osmosis_grpc.protocol.types.messages import tool_dicts
from osmosis_grpc.rollout import RolloutAgentLoop, RolloutSettings
from osmosis_grpc.testing import collect_rollout, run_rollout

HERE = Path(__file__).parent
SEEDS = HERE.parents[2] / "shared" / "seeds"
PREAMBLE = HERE / "preamble.py"

BLOCKS_PER_PAGE = {"000": 2, "001": 15}
BLOCKS = sorted(path.stem for path in (HERE / "blocks").glob("*.py"))

# How a page's rollouts end: block, policy, question, fields of the request, what the outcome says.
COMPLETED, FAILED = "COMPLETED", "FAILED"
MOCK, ECHO = ToolCallingMock(), EchoPolicy()
SIX = {"metadata": {"ground_truth": "6"}}
ROLLOUTS = [
    ("seed000_01_calculator", MOCK, "What is 2 * 3?", {}, (COMPLETED, "stop", 1.0, None)),
    ("seed001_01_skeleton", ECHO, "6", {}, (FAILED, "error", None, "agent")),  # run is `pass`
    ("seed001_06_calculator_agent", MOCK, "What is 2 * 3?", SIX, (COMPLETED, "stop", 1.0, None)),
    ("seed001_06_calculator_agent", MOCK, "What is 2 * 4?", SIX, (COMPLETED, "stop", 0.0, None)),
    ("seed001_06_calculator_agent", MOCK, "What is 2 * 3?", {}, (COMPLETED, "stop", None, None)),
    ("seed001_06_calculator_agent", MOCK, "What is 2 * 3?", {"max_turns": 1}, (COMPLETED, "max_turns", None, None)),
    (
        "seed001_06_calculator_agent",
        MOCK,
        "What is 2 * 3?",
        {"max_tokens_total": 1},
        (COMPLETED, "max_tokens", None, None),
    ),
    ("seed001_09_reward_required", ECHO, "6", SIX, (COMPLETED, "stop", 1.0, None)),
    ("seed001_10_reward_optional", ECHO, "6", {}, (COMPLETED, "stop", None, None)),
    ("seed001_14_log_events", ECHO, "6", {}, (FAILED, "error", None, "agent")),  # run returns nothing
    ("seed001_15_errors", ECHO, "6", {}, (COMPLETED, "stop", None, None)),
]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """Blocks read .env and write ./logs."""
    monkeypatch.chdir(tmp_path)


async def run_blocks(*blocks):
    """The namespace that blocks leave behind, begun from the preamble."""
    names = {"__name__": "seed_block"}
    exec(compile(PREAMBLE.read_text(), PREAMBLE, "exec"), names)
    for block in blocks:
        path = HERE / "blocks" / f"{block}.py"
        outcome = eval(compile(path.read_text(), path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if inspect.isawaitable(outcome):
            await outcome
    return names


def agent_of(names):
    """An instance of the agent that a block defines; None when it defines none."""
    for value in names.values():
        if isinstance(value, type) and issubclass(value, RolloutAgentLoop) and value.__module__ == names["__name__"]:
            return value()
    return bare_agent(names) if "run" in names else None


def bare_agent(names):
    """A class around a block that is only a `run`: first what the page elides, then the page's lines."""

    class BareAgent(RolloutAgentLoop):
        name = "bare"

        def get_tools(self, request):
            return []

        async def run(self, ctx):
            names.update(await names["agent_loop_logic"](ctx))
            return await names["run"](self, ctx)

    return BareAgent()


def asked(question):
    return [{"role": "user", "content": question}]


def page_of(number):
    pages = list(SEEDS.glob(f"{number}_*"))
    if not pages:
        pytest.skip(f"the seed pages are not beside the checkout: no {SEEDS}/{number}_*")
    return pages[0].read_text().replace("osmosis_ai", "osmosis_grpc")


@pytest.mark.parametrize(("number", "count"), BLOCKS_PER_PAGE.items())
def test_a_page_has_so_many_blocks(number, count):
    names = [block[: len("seed000_01")] for block in BLOCKS if block.startswith(f"seed{number}_")]
    assert names == [f"seed{number}_{i:02}" for i in range(1, count + 1)]


@pytest.mark.parametrize("number", BLOCKS_PER_PAGE)
def test_the_blocks_are_the_page_s_own_and_none_is_missing(number):
    rest = page_of(number)
    for block in BLOCKS:
        if block.startswith(f"seed{number}_"):
            text = (HERE / "blocks" / f"{block}.py").read_text()
            before, found, rest = rest.partition("\n" + text)
            assert found, f"{block} is not in page {number} word for word, after the block before it"
            assert not python_in(before), f"page {number} has Python before {block} that stands in no block"
            rest = "\n" + rest
    assert not python_in(rest), f"page {number} has Python after its last block that stands in no block"


def python_in(prose):
    """The lines that only Python begins with, at the margin."""
    return re.findall(r"^(?:(?:async )?def |class \w+\(|import \w+$|from \S+ import |@\w+$|\w+ = ).*", prose, re.M)


@pytest.mark.parametrize("block", BLOCKS)
async def test_a_block_runs(block):
    await run_blocks(block)


@pytest.mark.parametrize(("block", "policy", "question", "fields", "end"), ROLLOUTS)
async def test_an_agent_of_the_pages_ends_as_the_table_says(block, policy, question, fields, end):
    agent = agent_of(await run_blocks(block))
    outcome = await run_rollout(agent, policy, asked(question), **fields)
    boundary = outcome.failure and outcome.failure.boundary
    assert (outcome.status, outcome.finish_reason, outcome.reward, boundary) == end


async def test_every_agent_of_the_pages_is_in_the_table():
    agents = [block for block in BLOCKS if agent_of(await run_blocks(block))]
    assert agents == sorted({row[0] for row in ROLLOUTS})


async def test_the_calculator_s_tools_run():
    agent = agent_of(await run_blocks("seed001_06_calculator_agent"))
    outcome = await run_rollout(agent, MOCK, asked("What is (1 + 2) * (3 + 4)?"), metadata={"ground_truth": "21"})
    assert [m["content"] for m in outcome.messages if m["role"] == "tool"] == ["3", "7", "21.0"]
    assert outcome.metrics.num_tool_calls == 3
    assert outcome.reward == 1.0


async def test_logged_events_are_in_the_trajectory():
    agent = agent_of(await run_blocks("seed001_14_log_events"))
    _, seen = await collect_rollout(agent, ECHO, asked("6"))
    logged = {event.kind.name: event.kind.data for event in seen if isinstance(event.kind, events.Logged)}
    assert list(logged) == ["agent_start", "llm_response", "agent_complete"]
    assert logged["agent_start"] == {"num_messages": 1}
    assert logged["agent_complete"] == {"finish_reason": "stop", "reward": 1.0}


async def test_a_caught_error_is_returned_gracefully():
    async def undefined(ctx):
        return {}  # so `messages` stays unknown to the block's try

    names = await run_blocks("seed001_15_errors")
    names["agent_loop_logic"] = undefined
    outcome = await run_rollout(agent_of(names), ECHO, asked("6"))
    assert outcome.status == FAILED
    assert outcome.failure.boundary == "agent"
    assert outcome.failure.message == "Agent failed: name 'messages' is not defined"


@pytest.mark.parametrize(
    "block",
    [
        "seed000_01_calculator",
        "seed000_02_configuration",
        "seed001_06_calculator_agent",
        "seed001_07_create_app",
        "seed001_08_settings",
    ],
)
async def test_an_application_starts_and_stops(block):
    names = await run_blocks(block)
    async with names["app"].router.lifespan_context(names["app"]):
        pass
    expected = ["startup", "shutdown"] if block == "seed001_07_create_app" else []
    assert names["hooks_called"] == expected


def test_settings_take_the_page_s_ellipsis():
    assert RolloutSettings(...) == RolloutSettings()


async def test_schema_objects_and_plain_dictionaries_are_the_same_tools():
    objects, plain = [await run_blocks(block) for block in ("seed001_02_schemas", "seed001_03_plain_tools")]
    made = tool_dicts(objects["TOOLS"])
    assert made[0]["function"].pop("strict") is False
    assert made == tool_dicts(plain["TOOLS"])


async def test_tools_are_executed_as_the_page_shows():
    names = await run_blocks("seed001_04_execute_tool")
    call = names["tool_calls"][0]
    broken = {**call, "function": {"name": "search", "arguments": "{"}}
    unknown = {**call, "function": {"name": "fly", "arguments": "{}"}}
    contents = [(await names["execute_tool"](c))["content"] for c in (call, broken, unknown)]
    assert contents[0] == '{"query": "six", "hits": 6}'
    assert contents[1].startswith("Error: Invalid JSON arguments: ")
    assert contents[2] == "Error: Unknown tool: fly"

    names = await run_blocks("seed001_05_parallel_tools")
    assert [message["tool_call_id"] for message in names["results"]] == ["call_0", "call_1"]


async def test_reward_helpers_work_together():
    names = await run_blocks("seed001_11_osmosis_reward", "seed001_12_reward_helpers", "seed001_13_extract_answer")
    messages = [*asked("2 * 3?"), {"role": "assistant", "content": " 6 "}]
    assert names["compute_reward_from_messages"](messages, "6") == 1.0
    assert names["compute_reward_from_messages"](messages, "7") == 0.0
    assert names["compute_reward_from_messages"](messages, None) is None
    assert names["compute_reward"]("6", "6", extra_info={}, row=1) == 1.0
    assert names["extract_answer"]("so it is\n#### 6 ") == "6"
    assert names["extract_answer"]("no idea") is None
