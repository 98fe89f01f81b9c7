"""Conversations and rewards of rollouts as lines of a terminal: wrapping, widths, and texts that nobody trusts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_grpc.cli.screen import Line, Screen, columns, pieces, wrapped
from osmosis_grpc.cli.transcript import Conversation, View, transcript
from osmosis_grpc.protocol.types import ChatRef, ChatReward, OutcomeStatus, RolloutOutcome, Sample
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.reading.message_text import ToolEnd, reasoning_of, text_of
from osmosis_grpc.serve.json_output import Records

MESSAGES = [{"role": "user", "content": "hello"}]


class Printed(Records):
    """Keeps the lines that are printed."""

    def __init__(self):
        super().__init__(None)
        self.lines = []

    def say(self, text, colour=""):
        self.lines.append(f"\x1b[{colour}m{text}\x1b[0m" if colour else text)


def test_a_line_has_the_colour_of_its_kind_and_escaped_texts():
    printed = Printed()
    screen = Screen(printed, 20, colours=True)
    screen.say(Line.of("red\x1b[0m\x9b\r\n\u202e", "error"))
    screen.say(Line.of("plain"))
    screen.say("a\tb")
    assert printed.lines == ["\x1b[31m" + r"red\x1b[0m\x9b\r\n\u202e" + "\x1b[0m", "plain", "a   b"]


def test_a_fitted_text_is_one_line():
    screen = Screen(Records(None), 20, colours=False)
    assert screen.fitted("short\n") == r"short\n"
    assert screen.fitted("x" * 21) == "x" * 16 + " ..."
    assert columns(screen.fitted("漢字" * 20)) <= 20


def test_breaks_are_at_blanks_and_later_pieces_are_indented():
    assert list(wrapped("one two three four", 9)) == ["one two", "  three", "  four"]
    assert list(wrapped("abcdefghijklmnop", 6)) == ["abcdef", "  ghij", "  klmn", "  op"]
    assert list(wrapped("    indented code", 80)) == ["    indented code"]
    assert list(wrapped("", 10)) == [""]
    assert list(wrapped("漢字漢字", 4)) == ["漢字", "  漢", "  字"]


@given(st.text(max_size=200), st.integers(8, 40))
def test_no_piece_is_wider_and_no_character_is_lost(text, width):
    pieces = list(wrapped(text, width))
    assert all(columns(piece) <= width for piece in pieces)
    assert all(piece.isprintable() for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(printable(text.expandtabs(4)).split())


def test_pieces_of_lines_keep_their_indent():
    assert list(pieces("  one two three\nfour", 10)) == ["  one two", "    three", "four"]


def test_a_megabyte_in_one_line_is_wrapped():
    assert sum(map(len, wrapped("é" * 1_000_000, 72, more=0))) == 1_000_000


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


def lines(reward=None, **samples):
    outcome = RolloutOutcome(rollout_id="r", status=OutcomeStatus.COMPLETED, reward=reward, samples=samples)
    return list(transcript(outcome, []))


def test_one_sample_has_its_reward_in_the_last_line():
    assert lines(1.0, main=Sample(messages=MESSAGES, reward=1.0)) == [
        "conversation (main)",
        "  user: hello",
        "COMPLETED: 0 turns, 0 tool calls, reward 1, 0.00 s",
    ]


def test_components_and_rewards_of_chats_are_shown():
    chats = (ChatReward(chat_number=1, reward=0.25), ChatReward(chat_number=3, reward_components={"short": 1.0}))
    sample = Sample(messages=MESSAGES, reward=0.5, reward_components={"format": 1.0, "x\n": 0.0}, chat_rewards=chats)
    assert lines(0.5, main=sample)[2:] == [
        "  reward 0.5 (format 1, x\\n 0)",
        "  chat 1: reward 0.25",
        "  chat 3: no reward (short 1)",
        "COMPLETED: 0 turns, 0 tool calls, reward 0.5, 0.00 s",
    ]


def test_several_samples_show_their_rewards_policies_and_parents():
    shown = lines(
        main=Sample(messages=MESSAGES, reward=1.0, policy="planner"),
        solve=Sample(messages=MESSAGES, reward=-1.0, policy="a\x1b", parent=ChatRef("main", 2)),
        judge=Sample(messages=MESSAGES, parent=ChatRef("main"), train=False),
    )
    assert shown == [
        "conversation (main, policy planner)",
        "  user: hello",
        "  reward 1",
        "conversation (solve, policy a\\x1b, from main chat 2)",
        "  user: hello",
        "  reward -1",
        "conversation (judge, from main, not trained on)",
        "  user: hello",
        "COMPLETED: 0 turns, 0 tool calls, reward 0 (mean of 2 samples), 0.00 s",
    ]


def test_without_any_reward_the_last_line_says_so():
    assert lines(main=Sample(messages=MESSAGES))[-1] == "COMPLETED: 0 turns, 0 tool calls, no reward, 0.00 s"
