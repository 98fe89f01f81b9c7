"""The lines of a conversation: tool results, reasoning, parts that are no text."""

import pytest

from osmosis_grpc.cli.transcript import Conversation, View
from osmosis_grpc.records.reading.message_text import ToolEnd, reasoning_of, text_of


def call(number="c1", name="look"):
    return {"id": number, "type": "function", "function": {"name": name, "arguments": "{}"}}


def asks(*calls, **fields):
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **fields}


def result(content, number="c1"):
    return {"role": "tool", "tool_call_id": number, "content": content}


def test_results_of_calls_with_the_same_id_stay_with_their_turns():
    """Many models begin with call_1 in each turn."""
    messages = [asks(call()), asks(call(), content="again"), result("second"), {"role": "user", "content": "go on"}]
    ends = {(1, "c1"): ToolEnd(0.5, missing="it did not return"), (2, "c1"): ToolEnd(0.25)}
    assert list(Conversation(messages, tools=ends).lines()) == [
        "1 assistant calls look {}",
        "    it did not return",
        "2 assistant: again",
        "2 assistant calls look {}",
        "    result (250.0 ms): second",
        "user: go on",
    ]


def test_parallel_calls_have_their_own_results_and_the_rest_is_shown_too():
    messages = [asks(call("a"), call("b")), result("of b", "b"), result("of a", "a"), result("of nobody", "z")]
    assert list(Conversation(messages).lines()) == [
        "1 assistant calls look {}",
        "    result: of a",
        "1 assistant calls look {}",
        "    result: of b",
        "tool (z): of nobody",
    ]


def test_what_only_the_events_have_is_shown_for_a_call_without_a_result():
    ends = {
        (1, "a"): ToolEnd(0.001, message=result("from the event", "a")),
        (1, "b"): ToolEnd(0.002, error="it raised"),
        (1, "c"): ToolEnd(missing="it runs, for 2.0 s"),
    }
    lines = list(Conversation([asks(call("a"), call("b"), call("c"), call("d"))], tools=ends).lines())
    assert [line.strip() for line in lines[1::2]] == [
        "result (1.0 ms): from the event",
        "error (2.0 ms): it raised",
        "it runs, for 2.0 s",
        "no result",
    ]
    assert [line.kind for line in lines[1::2]] == ["", "error", "note", "note"]


def test_numbers_are_those_of_the_chats():
    messages = [{"role": "assistant", "content": "an example"}, {"role": "user", "content": "hi"}, asks(), asks()]
    messages[-1]["content"] = "last"
    lines = list(Conversation(messages, {2: 4, 3: 7}, notes={7: "0.50 s"}).lines())
    assert lines == ["assistant: an example", "user: hi", "4 assistant: ", "7 assistant (0.50 s): last"]


@pytest.mark.parametrize(
    ("message", "thought", "content"),
    [
        ({"reasoning_content": "hm", "content": "yes"}, "hm", "yes"),
        ({"reasoning": "hm", "content": "yes"}, "hm", "yes"),
        ({"content": "<think>\nhm\n</think>\n\nyes"}, "hm", "yes"),
        ({"content": "<think> without an end"}, "", "<think> without an end"),
        ({"reasoning": {"a": 1}, "content": None}, "", None),
    ],
)
def test_reasoning_is_apart_from_the_content(message, thought, content):
    assert reasoning_of(message) == (thought, content)


def test_reasoning_is_folded_with_one_hint():
    messages = [asks(reasoning="one\ntwo"), asks(reasoning="three", content="so")]
    folded = list(Conversation(messages, view=View(reasoning=False, hints=True)).lines())
    assert folded[0] == "1 reasoning: 2 lines, 7 characters (--reasoning shows it)"
    assert folded[2] == "2 reasoning: 1 line, 5 characters"
    shown = list(Conversation(messages, view=View(reasoning=True)).lines())
    assert shown[:2] == ["1 reasoning: one", "  two"]
    assert not any("reasoning" in line for line in Conversation(messages).lines())


def test_long_texts_name_the_option_that_shows_them():
    messages = [asks(call()), result("line\n" * 10)]
    lines = list(Conversation(messages, {0: 3}, view=View(lines=4, width=60, hints=True)).lines())
    assert len(lines) == 6
    assert lines[-1] == "      ... 6 more lines (--turn 3 shows them)"


def test_parts_that_are_no_text_are_named():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5000}}
    assert text_of([{"type": "text", "text": "look"}, image]) == "look\n[image_url, 5069 characters of JSON]"
    assert text_of(None) == ""
    assert text_of({"a": 1}) == '{"a": 1}'
    assert text_of(["plain", 1]) == '["plain", 1]'
