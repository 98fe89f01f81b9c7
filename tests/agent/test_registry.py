"""Agent loops by name."""

import threading

import pytest

from osmosis_grpc.agent.loop import AgentNameError
from osmosis_grpc.compat.sdk_functions import (
    AgentLoopRegistry,
    get_agent_loop,
    list_agent_loops,
    register_agent_loop,
    unregister_agent_loop,
)
from osmosis_grpc.protocol.errors import AgentLoopNotFoundError
from osmosis_grpc.testing.calculator import CalculatorAgent


def agent(called):
    return type("Agent", (CalculatorAgent,), {"name": called})()


def test_what_was_registered_is_found_until_it_is_forgotten():
    registry, first, second = AgentLoopRegistry(), agent("z"), agent("a")
    registry.register(first)
    registry.register(second)
    assert registry.list_names() == ["z", "a"]
    assert (registry.get("z"), registry.get("a"), registry.get("b")) == (first, second, None)
    assert [registry.unregister("z"), registry.unregister("z")] == [True, False]
    assert (registry.get("z"), registry.list_names()) == (None, ["a"])
    registry.clear()
    assert registry.list_names() == []
    registry.register(first)


def test_a_name_is_taken_once():
    registry, first = AgentLoopRegistry(), agent("one")
    registry.register(first)
    for loop in (agent("one"), first):
        with pytest.raises(ValueError, match="'one' is registered already"):
            registry.register(loop)
    assert registry.get("one") is first


@pytest.mark.parametrize(
    ("thing", "text"),
    [(None, "not a NoneType"), ("calculator", "not a str"), (CalculatorAgent, r"CalculatorAgent\(\)"), (int, "a type")],
)
def test_only_instances_of_agent_loops_are_registered(thing, text):
    registry = AgentLoopRegistry()
    with pytest.raises(TypeError, match=text):
        registry.register(thing)
    assert registry.list_names() == []


def test_a_name_that_an_instance_spoiled_is_refused():
    spoiled = agent("good")
    spoiled.name = " "
    with pytest.raises(AgentNameError) as caught:
        AgentLoopRegistry().register(spoiled)
    assert caught.value.code == "EMPTY_NAME"


def test_of_many_threads_one_gets_the_name():
    registry, start, won = AgentLoopRegistry(), threading.Barrier(16), []

    def register(loop):
        start.wait()
        for number in range(50):
            loop.name = f"agent-{number}"
            try:
                registry.register(loop)
            except ValueError:
                continue
            won.append(loop.name)

    threads = [threading.Thread(target=register, args=(agent("some"),)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == sorted(registry.list_names()) == sorted(f"agent-{number}" for number in range(50))


@pytest.fixture
def registered():
    loop = agent("test-registry")
    register_agent_loop(loop)
    yield loop
    unregister_agent_loop(loop.name)


def test_the_process_has_one_of_its_own(registered):
    assert get_agent_loop("test-registry") is registered
    assert "test-registry" in list_agent_loops()
    with pytest.raises(ValueError, match="test-registry"):
        register_agent_loop(agent("test-registry"))
    with pytest.raises(TypeError):
        register_agent_loop(CalculatorAgent)
    assert [unregister_agent_loop("test-registry"), unregister_agent_loop("test-registry")] == [True, False]
    assert "test-registry" not in list_agent_loops()


def test_the_error_for_an_unknown_name_lists_the_known_ones(registered):
    with pytest.raises(AgentLoopNotFoundError) as caught:
        get_agent_loop("test-registrx")
    assert (caught.value.name, caught.value.available) == ("test-registrx", sorted(list_agent_loops()))
    assert "test-registry" in str(caught.value)
