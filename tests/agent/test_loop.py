"""The name of an agent loop is checked when its class is made."""

from abc import abstractmethod

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.loop import AgentNameError, name_problem
from osmosis_grpc.agent.runnable import as_runnable


def get_tools(self, request):
    return []


async def run(self, ctx):
    return ctx.complete([])


METHODS = {"get_tools": get_tools, "run": run}


def make(**body):
    return type("Made", (RolloutAgentLoop,), METHODS | body)


WRONG = {
    "missing": ({}, "MISSING_NAME"),
    "None": ({"name": None}, "MISSING_NAME"),
    "empty": ({"name": ""}, "EMPTY_NAME"),
    "blank": ({"name": " \t"}, "EMPTY_NAME"),
    "a number": ({"name": 5}, "INVALID_NAME_TYPE"),
    "bytes": ({"name": b"agent"}, "INVALID_NAME_TYPE"),
    "a property": ({"name": property(lambda self: "agent")}, "INVALID_NAME_TYPE"),
    "257 characters": ({"name": "x" * 257}, "INVALID_NAME_TYPE"),
}


@pytest.mark.parametrize(("body", "code"), WRONG.values(), ids=WRONG)
def test_a_wrong_name_is_refused_at_once(body, code):
    with pytest.raises(AgentNameError, match=r"^Made: ") as raised:
        make(**body)
    assert raised.value.code == code
    assert isinstance(raised.value, TypeError)
    assert name_problem(body.get("name"))[0] == code


@pytest.mark.parametrize("name", ["a", "x" * 256, "mein Agent", "агент", " padded "])
def test_a_good_name_stays_as_it_is(name):
    assert make(name=name)().name == name
    assert name_problem(name) is None


def test_a_name_may_be_inherited():
    class Base(make(name="base")):
        pass

    assert Base().name == "base"


def test_a_subclass_may_not_take_its_name_away():
    with pytest.raises(AgentNameError):
        type("Worse", (make(name="base"),), {"name": ""})


@pytest.mark.parametrize("method", ["get_tools", "run"])
def test_a_base_class_with_one_of_both_methods_needs_no_name_and_is_no_agent(method):
    abstract = type("Half", (RolloutAgentLoop,), {method: METHODS[method]})
    with pytest.raises(TypeError, match="abstract" if method == "get_tools" else "'name' class attribute"):
        as_runnable(abstract())
    rest = {name: body for name, body in METHODS.items() if name != method}
    with pytest.raises(AgentNameError):
        type("Whole", (abstract,), rest)
    assert type("Whole", (abstract,), rest | {"name": "whole"})().name == "whole"


def test_a_class_that_leaves_a_method_of_its_own_open_needs_no_name():
    class Turns(RolloutAgentLoop):
        get_tools = get_tools

        async def run(self, ctx):
            return await self.turn(ctx)

        @abstractmethod
        async def turn(self, ctx): ...

    with pytest.raises(TypeError, match="abstract"):
        Turns()

    class Filled(Turns):
        name = "filled"

        async def turn(self, ctx):
            return ctx.complete([])

    assert Filled().name == "filled"
    with pytest.raises(AgentNameError):
        type("Nameless", (Turns,), {"turn": Filled.turn})
