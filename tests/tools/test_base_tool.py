"""The life of a tool with a state: create, calls, reward and release, once for each trajectory."""

import asyncio
from typing import ClassVar

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import GradingError, ToolArgumentError
from osmosis_grpc.testing import run_rollout
from osmosis_grpc.tools import BaseTool, ToolRegistry


class Counter(BaseTool):
    """Counts calls."""

    name = "counter"

    def __init__(self, log, fail=""):
        self.log, self.fail, self.count = log, fail, 0

    def noted(self, step):
        self.log.append((step, id(self)))
        if self.fail == step:
            raise RuntimeError(f"{step} fails")

    async def create(self, trajectory_id):
        self.noted(f"create {trajectory_id}")

    async def execute(self, by: int = 1) -> int:
        self.noted("execute")
        self.count += by
        return self.count

    async def reward(self):
        self.noted("reward")
        return float(self.count)

    async def release(self):
        await asyncio.sleep(0)
        self.noted("release")


def steps(log):
    return [step for step, _ in log]


def registered(log, **options):
    registry = ToolRegistry()
    registry.register(Counter, log=log, **options)
    return registry


@pytest.mark.row("ARL 34")
async def test_one_object_answers_all_calls_of_a_trajectory():
    log = []
    async with registered(log).trajectory("t1") as trajectory:
        counter = trajectory.tools["counter"]
        assert [await counter.run({}), await counter.run({"by": 5})] == [1, 6]
    assert steps(log) == ["create t1", "execute", "execute", "reward", "release"]
    assert len({which for _, which in log}) == 1
    assert trajectory.rewards == {"counter": 6.0}


@pytest.mark.row("ARL 34")
async def test_a_cancelled_trajectory_gives_its_reward_and_is_released_once():
    log, began = [], asyncio.Event()

    async def work():
        async with registered(log).trajectory("t") as trajectory:
            await trajectory.tools["counter"].run({})
            began.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await began.wait()
    task.cancel()
    await asyncio.sleep(0)  # the second one comes during the release
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps(log) == ["create t", "execute", "reward", "release"]


@pytest.mark.parametrize(
    ("fail", "expected"),
    [
        ("create t", ["create t", "release"]),
        ("execute", ["create t", "execute", "reward", "release"]),
        ("reward", ["create t", "execute", "reward", "release"]),
        ("release", ["create t", "execute", "reward", "release"]),
    ],
)
@pytest.mark.row("ARL 34")
async def test_a_failure_of_a_step_does_not_skip_the_release(fail, expected, caplog):
    log = []
    try:
        async with registered(log, fail=fail).trajectory("t") as trajectory:
            await trajectory.tools["counter"].run({})
    except (RuntimeError, GradingError) as error:
        raised = str(error)
    else:
        raised = caplog.text
    assert f"{fail} fails" in raised
    assert steps(log) == expected


@pytest.mark.row("ARL 34")
async def test_trajectories_share_no_object_of_a_class():
    log = []
    registry = registered(log)

    async def work(number):
        async with registry.trajectory(f"t{number}") as trajectory:
            return [await trajectory.tools["counter"].run({}) for _ in range(3)]

    assert await asyncio.gather(*map(work, range(50))) == [[1, 2, 3]] * 50
    assert len({which for _, which in log}) == 50


class Agent(RolloutAgentLoop):
    """Counts with one object for the whole rollout."""

    name = "agent"

    def __init__(self, registry):
        self.registry = registry

    def get_tools(self, request):
        return self.registry.schemas()

    async def run(self, ctx):
        async with self.registry.trajectory(ctx.request.rollout_id) as trajectory:
            ctx.bind_tools(list(trajectory.tools.values()))
            messages = await ctx.tool_loop(ctx.request.messages, max_turns=3)
        return ctx.complete(messages, reward=trajectory.rewards["counter"])


@pytest.mark.row("ARL 34")
async def test_the_tools_of_a_trajectory_run_in_a_rollout():
    def policy(request):
        call = {"id": f"c{request.chat_number}", "type": "function"}
        call["function"] = {"name": "counter", "arguments": "{}"}
        return answer(request, {"role": "assistant", "content": None, "tool_calls": [call]})

    log = []
    outcome = await run_rollout(Agent(registered(log)), policy, [{"role": "user", "content": "?"}])
    assert outcome.reward == 3.0
    assert [step for step in steps(log) if step != "execute"][1:] == ["reward", "release"]


@pytest.mark.row("ARL 35", "ARL 34")
def test_a_registry_keeps_objects_and_makes_objects_of_classes():
    registry, shared = registered([]), Counter([])
    registry.register(shared, "shared")
    assert registry.names() == ["counter", "shared"]
    assert registry.get("shared") is shared
    assert registry.get("counter") is not registry.get("counter")
    assert registry.info("shared")["shared"]
    assert registry.info("counter")["class"] == "Counter"


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda registry: registry.register(Counter), "name: the tool 'counter' is registered already"),
        (lambda registry: registry.register(dict), "tool: dict is not a BaseTool"),
        (lambda registry: registry.register(Counter([]), "other", log=[]), "log: an object takes no options"),
        (lambda registry: registry.get("browser"), "there is no tool 'browser'; the tools are counter"),
        (lambda registry: registry.schemas("gemini"), "form: 'gemini' is not openai or anthropic"),
    ],
)
@pytest.mark.row("ARL 35", "ARL 34")
def test_a_wrong_call_of_the_registry_names_the_option(call, problem):
    with pytest.raises(Exception, match=problem):
        call(registered([]))


@pytest.mark.row("ARL 35", "ARL 34")
async def test_release_all_releases_the_objects_and_forgets_the_names():
    log = []
    registry = registered([])
    registry.register(Counter(log), "shared")
    await registry.release_all()
    assert (steps(log), registry.names()) == (["release"], [])


class Typed(BaseTool):
    """Has a schema of its own."""

    name = "typed"
    parameters: ClassVar = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "minLength": 1},
            "days": {"type": "integer", "minimum": 1, "maximum": 7},
            "unit": {"enum": ["c", "f"]},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
            "at": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["city"],
    }

    def execute(self, **arguments):
        return arguments


@pytest.mark.row("ARL 36", "ARL 34")
async def test_valid_arguments_reach_the_tool_unchanged():
    given = {"city": "Rome", "days": 3, "unit": "c", "tags": ["a"], "at": {"x": 1.5}, "note": None}
    assert await Typed().as_tool().run(given) == given


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "city: is missing"),
        ({"city": 5}, "city: 5 is not of the type string"),
        ({"city": ""}, "city: '' has fewer characters than 1"),
        ({"city": "x", "days": True}, "days: True is not of the type integer"),
        ({"city": "x", "days": 8}, "days: 8 is greater than 7"),
        ({"city": "x", "days": 0}, "days: 0 is less than 1"),
        ({"city": "x", "unit": "k"}, "unit: 'k' is not one of 'c', 'f'"),
        ({"city": "x", "tags": ["a", 1]}, "tags.1: 1 is not of the type string"),
        ({"city": "x", "tags": ["a", "b", "c"]}, "tags: .* has more items than 2"),
        ({"city": "x", "at": {}}, "at.x: is missing"),
        ({"city": "x", "note": 1}, "note: 1 is not of the type string"),
        ({"city": "x", "town": "y"}, "town: is not a parameter; known: city, days"),
        ({"days": "3", "town": 1}, "city: is missing; days: '3' is not of the type integer; town"),
    ],
)
@pytest.mark.row("ARL 36", "ARL 34")
async def test_wrong_arguments_name_each_field(arguments, problem):
    with pytest.raises(ToolArgumentError, match=problem):
        await Typed().as_tool().run(arguments)


@pytest.mark.row("ARL 36", "ARL 34")
@pytest.mark.parametrize(("arguments", "name"), [({"by": "x"}, "by"), ({"to": 1}, "to")])
async def test_the_schema_of_execute_checks_types_and_further_keys(arguments, name):
    with pytest.raises(ToolArgumentError, match=f"^{name}: "):
        await Counter([]).as_tool().run(arguments)


@pytest.mark.row("ARL 36", "ARL 34")
def test_schemas_have_the_formats_of_openai_and_anthropic():
    registry = registered([])
    (openai,), (anthropic,) = registry.schemas(), registry.schemas("anthropic")
    assert openai["type"] == "function"
    assert openai["function"]["name"] == anthropic["name"] == "counter"
    assert openai["function"]["description"] == anthropic["description"] == "Counts calls."
    assert openai["function"]["parameters"] == anthropic["input_schema"]
    assert anthropic["input_schema"]["properties"]["by"] == {"type": "integer", "default": 1}


class Loose(BaseTool):
    """Takes any arguments, as tools without types do."""

    async def execute(self, query, limit=5, **more):
        return [query, limit, more]


@pytest.mark.row("ARL 37", "ARL 34")
async def test_a_tool_without_types_runs():
    tool = Loose().as_tool("search")
    assert await tool.run({"query": "q", "limit": "7", "deep": True}) == ["q", "7", {"deep": True}]
    with pytest.raises(ToolArgumentError, match="query: is missing"):
        await tool.run({"limit": 1})
