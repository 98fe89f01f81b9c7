"""The registry of agent loops, and the readers of messages."""

import threading
from types import MappingProxyType

import pytest

from osmosis_grpc.agent.loop import AgentNameError
from osmosis_grpc.compat.sdk_functions import (
    AgentLoopRegistry,
    count_messages_by_role,
    get_agent_loop,
    get_message_content,
    get_message_role,
    is_assistant_message,
    is_tool_message,
    is_user_message,
    list_agent_loops,
    normalize_stop,
    parse_tool_calls,
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
        with pytest.raises(ValueError, match="'one' is already registered"):
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


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("message", "calls"),
    [
        ({"role": "assistant", "tool_calls": [CALL]}, [CALL]),
        ({"role": "assistant", "tool_calls": []}, []),
        ({"role": "assistant", "tool_calls": None}, []),
        ({"role": "assistant", "tool_calls": CALL}, []),
        ({"role": "assistant", "tool_calls": "add"}, []),
        ({"role": "assistant"}, []),
        ({}, []),
        (MappingProxyType({"tool_calls": [CALL, CALL]}), [CALL, CALL]),
    ],
)
def test_tool_calls(message, calls):
    assert parse_tool_calls(message) == calls


@pytest.mark.parametrize(
    ("stop", "texts"),
    [
        (None, None),
        ("a", ["a"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([], []),
        ([1, "b"], ["1", "b"]),
        (3, None),
        ({"a": 1}, None),
        (("a",), None),
        (True, None),
    ],
)
def test_stop(stop, texts):
    assert normalize_stop(stop) == texts


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "hello"}, "hello"),
        ({"content": ""}, ""),
        ({"content": None}, ""),
        ({"content": 3}, ""),
        ({}, ""),
        ({"content": [{"type": "text", "text": "hello"}]}, ""),
    ],
)
def test_content(message, text):
    assert get_message_content(message) == text


@pytest.mark.parametrize(
    ("message", "role"),
    [
        ({"role": "user"}, "user"),
        ({"role": "critic"}, "critic"),
        ({"role": None}, "unknown"),
        ({"role": ["user"]}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_role(message, role):
    assert get_message_role(message) == role


@pytest.mark.parametrize("role", ["assistant", "tool", "user", "system", "Assistant", None])
def test_who_speaks(role):
    message = {"role": role}
    expected = (is_assistant_message(message), is_tool_message(message), is_user_message(message))
    assert expected == (role == "assistant", role == "tool", role == "user")


def test_roles_are_counted():
    roles = ["system", "user", "assistant", "tool", "tool", "assistant", None, ["user"]]
    counts = count_messages_by_role({"role": role} for role in roles)
    assert counts == {"system": 1, "user": 1, "assistant": 2, "tool": 2, "unknown": 2}
    assert type(counts) is dict
    assert count_messages_by_role([]) == {}
