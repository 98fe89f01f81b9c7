"""Reading messages that a model server made, in whatever way."""

from types import MappingProxyType

import pytest

from osmosis_grpc.compat.sdk_functions import (
    count_messages_by_role,
    get_message_content,
    get_message_role,
    is_assistant_message,
    is_tool_message,
    is_user_message,
    normalize_stop,
    parse_tool_calls,
)

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
