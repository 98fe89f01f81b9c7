"""Tool calls in the texts of replies, in three styles."""

import json

import pytest

from osmosis_grpc.policies.tool_call_texts import STYLES, parse_tool_calls

TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "count": {"type": "integer"},
                "zip": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
        },
    },
}
CALL = '{"name": "find", "arguments": {"text": "a", "count": 2}}'
OTHER_KEY = '{"name": "find", "parameters": {"text": "a", "count": 2}}'
QWEN = "<function=find>\n<parameter=text>\n12\n</parameter>\n<parameter=count>\n2\n</parameter>\n</function>"
FOUND = [("find", {"text": "a", "count": 2})]


def parsed(text, style="auto"):
    found = parse_tool_calls(text, [TOOL], style)
    return found.content, [(call.name, dict(call.arguments)) for call in found.calls]


@pytest.mark.parametrize(
    ("style", "text", "content", "calls"),
    [
        ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", FOUND),
        ("hermes", f"I look.\n<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", "I look.", FOUND * 2),
        ("hermes", f"<tool_call>\n{CALL}\n{CALL}\n</tool_call>", "", FOUND * 2),
        (
            "hermes",
            '<tool_call>{"name": "find", "arguments": {"text": "</tool_call>"}}</tool_call>',
            "",
            [("find", {"text": "</tool_call>"})],
        ),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", {"a": 1})]),
        ("hermes", f"<think>a</think><tool_call>{CALL}</tool_call> so", "<think>a</think> so", FOUND),
        ("qwen", f"<tool_call>\n{QWEN}\n</tool_call>", "", [("find", {"text": "12", "count": 2})]),
        ("qwen", "<tool_call><function=g></function></tool_call>", "", [("g", {})]),
        (
            "qwen",
            '<tool_call><function=g><parameter=x>{"a": [1]}</parameter></function></tool_call>',
            "",
            [("g", {"x": {"a": [1]}})],
        ),
        ("qwen", f"So.\n{QWEN}", "So.", [("find", {"text": "12", "count": 2})]),
        (
            "qwen",
            "<tool_call><function=find><parameter=text>a\n<parameter=count>2</parameter></function></tool_call>",
            "",
            FOUND,
        ),
        *(
            (
                "qwen",
                f"<tool_call><function=find>\n<parameter=zip>\n{text}\n</parameter>\n</function></tool_call>",
                "",
                [("find", {"zip": value})],
            )
            for text, value in (("12345", "12345"), ("true", "true"), ("1e5", "1e5"), ("null", None))
        ),
        ("json", CALL, "", FOUND),
        ("json", f" {CALL}\nI look.", "I look.", FOUND),
        ("json", f"[{CALL}, {OTHER_KEY}]", "", FOUND * 2),
        ("json", f"{CALL}\n</tool_call>", "", FOUND),
        ("json", f"```json\n{CALL}\n```", "", FOUND),
    ],
)
def test_a_call_is_found_by_its_style_and_by_auto(style, text, content, calls):
    assert parsed(text, style) == (content, calls)
    assert parsed(text) == (content, calls)


@pytest.mark.parametrize(
    "text",
    [
        "It is 5.",
        "",
        '<tool_call>{"name": "find", "arguments": {"text": </tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "find", "arguments": [1]}</tool_call>',
        "<tool_call><function=find>no parameters</function></tool_call>",
        "<|python_tag|>print(1)",
        f"<tool_call>\n{CALL}",
        f"<tool_call>\n{QWEN}"[:-3],
        '{"name": "Ann", "arguments": {"age": 3}}',
        "<function=unknown><parameter=a>1</parameter></function>",
        '{"name": "find"}',
        '{"answer": 5}',
        "[]",
        "[1, 2]",
        '{"name": "find", "arguments": {"text": "\\ud800"}}',
        '{"name": "find", "arguments": {"text": NaN}}',
        "[" * 5000,
        '<tool_call>{"name": ' * 200,
    ],
)
@pytest.mark.parametrize("style", ["auto", *STYLES])
def test_another_text_stays_text(text, style):
    assert parsed(text, style) == (text.strip(), [])


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\xa0", "\u3000", "\x1c"], ids=lambda mark: f"{ord(mark):04x}")
@pytest.mark.parametrize(("text", "calls"), [("@", []), (f"@<tool_call>{CALL}</tool_call>@", FOUND)])
def test_only_blanks_and_line_ends_around_the_content_are_left_out(mark, text, calls):
    said = f"{mark}yes{mark}"
    content, found = parsed(f" \n{text.replace('@', said)}\n\t ")
    assert (content, found) == (said * text.count("@"), calls)


def test_a_broken_call_beside_a_good_one_stays_text():
    broken = '<tool_call>{"name": "find", "arguments": </tool_call>'
    found = parse_tool_calls(f"{broken}<tool_call>{CALL}</tool_call>", [TOOL])
    assert (found.content, len(found.calls)) == (broken, 1)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"<tool_call>{CALL}", "unclosed_block"),
        (f"<tool_call>{QWEN}"[:-20], "unclosed_block"),
        ('<tool_call>{"name": "find", "arguments": </tool_call>', "invalid_call"),
        ("<tool_call><function=find>no parameters</function></tool_call>", "invalid_call"),
    ],
)
def test_what_is_wrong_with_a_call_is_said(text, problem):
    assert parse_tool_calls(text, [TOOL]).unread == (problem,)


def test_what_a_style_writes_is_found_again():
    arguments = {"text": 'a "quoted" </tool> \n line, ü', "count": -3}
    text = f"<tool_call>\n{json.dumps({'name': 'find', 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"
    assert parsed(text) == ("", [("find", arguments)])


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "begin", ["<tool_call>", "<function=find>{", "<parameter=text>", "<|python_tag|>", '{"a":', "["]
)
def test_a_model_that_repeats_a_beginning_is_read_at_once(style, begin):
    """The time of a search for the end at each beginning would grow with the square of the length."""
    text = "<tool_call><function=find>" + begin * 60_000
    assert parsed(text, style) == (text, [])
