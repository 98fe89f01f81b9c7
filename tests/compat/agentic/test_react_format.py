"""Replies with the labels Thought, Action and Final Answer: a table, and format and parse as inverses."""

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osmosis_grpc.compat.agentic.reply_formats import Answer, Call, Thought, Unreadable, read_reply

PARAMETERS = {"calc": ["expression", "precision"], "search": ["query"]}


def short(part):
    """Thoughts and answers as (kind, text), calls as (name, arguments), an unreadable action as its error."""
    match part:
        case Thought(text):
            return "thought", text
        case Answer(text):
            return "answer", text
        case Call(_, name, arguments):
            return name, arguments
        case Unreadable(_, error):
            return "error", error


NOT_CLOSED = "the call of calc is not closed with a parenthesis"
TABLE = {
    "": [],
    "Hello.": [("thought", "Hello.")],
    "Thought: hm": [("thought", "hm")],
    "Thought:\nhm\n\nhm": [("thought", "hm\n\nhm")],
    "Final Answer: 42": [("answer", "42")],
    "final answer: 42": [("answer", "42")],
    "FINAL ANSWER:42": [("answer", "42")],
    "**Final Answer:** 42": [("answer", "42")],
    "Action: Final Answer: 42": [("answer", "42")],
    "Thought: done\nFinal Answer: a\nb\nThought: c": [("thought", "done"), ("answer", "a\nb\nThought: c")],
    # an answer inside a thought does not end the rollout
    "I do not know the answer: let me search": [("thought", "I do not know the answer: let me search")],
    "Thought: the final answer: it is not known": [("thought", "the final answer: it is not known")],
    "Thought: the answer\nis near": [("thought", "the answer\nis near")],
    # a thought and an action in one reply
    "Thought: add\nAction: calc(expression='1+1')": [("thought", "add"), ("calc", {"expression": "1+1"})],
    "I add.\nAction: calc(expression='1+1')": [("thought", "I add."), ("calc", {"expression": "1+1"})],
    "thought: add\naction: calc(expression='1')": [("thought", "add"), ("calc", {"expression": "1"})],
    "**Thought:** add\n**Action:** calc(expression='1')": [("thought", "add"), ("calc", {"expression": "1"})],
    "## Thought: add\n- Action: calc(expression='1')": [("thought", "add"), ("calc", {"expression": "1"})],
    # commas, quotes, nesting
    "Action: calc(expression='max(1,2)')": [("calc", {"expression": "max(1,2)"})],
    'Action: calc(expression="a, b", precision=3)': [("calc", {"expression": "a, b", "precision": 3})],
    "Action: calc(expression=max(1, 2))": [("calc", {"expression": "max(1, 2)"})],
    "Action: calc(expression=(1+2)*3)": [("calc", {"expression": "(1+2)*3"})],
    "Action: calc(expression=1+2)": [("calc", {"expression": "1+2"})],
    "Action: search(query='it\\'s')": [("search", {"query": "it's"})],
    'Action: search(query="it\'s")': [("search", {"query": "it's"})],
    'Action: search(query="say \\"hi\\"")': [("search", {"query": 'say "hi"'})],
    "Action: search(query=':) (')": [("search", {"query": ":) ("})],
    "Action: search(query='a' + 'b')": [("search", {"query": "'a' + 'b'"})],
    r"Action: search(query='\d+\n')": [("search", {"query": "\\d+\n"})],
    # values
    "Action: f(a=1, b=1.5, c=true, d=None, e=[1, 'x'], f={'k': 1})": [
        ("f", {"a": 1, "b": 1.5, "c": True, "d": None, "e": [1, "x"], "f": {"k": 1}})
    ],
    'Action: f(a="5")': [("f", {"a": "5"})],
    "Action: f(a=5)": [("f", {"a": 5})],
    "Action: f(a=yes)": [("f", {"a": "yes"})],
    'Action: f(a={"b": {"c": [1, {"d": ")"}]}})': [("f", {"a": {"b": {"c": [1, {"d": ")"}]}}})],
    "Action: f()": [("f", {})],
    "Action: f": [("f", {})],
    "Action: f( a = 1 , )": [("f", {"a": 1})],
    "Action: web-search.v2(q='x')": [("web-search.v2", {"q": "x"})],
    # values without names
    "Action: calc('1+1')": [("calc", {"expression": "1+1"})],
    "Action: calc('1+1', 3)": [("calc", {"expression": "1+1", "precision": 3})],
    "Action: calc('1', 2, 3)": [("calc", {"expression": "1", "precision": 2, "arg_2": 3})],
    "Action: calc(3, expression='1')": [("calc", {"expression": "1", "precision": 3})],
    'Action: calc({"expression": "1"})': [("calc", {"expression": "1"})],
    # objects, inputs and fences
    'Action: {"name": "calc", "arguments": {"expression": "1"}}': [("calc", {"expression": "1"})],
    'Action:\n```json\n{"action": "calc", "action_input": {"expression": "1"}}\n```': [("calc", {"expression": "1"})],
    'Action: calc\nAction Input: {"expression": "1"}': [("calc", {"expression": "1"})],
    "Action: calc\nAction Input: 1+1": [("calc", {"expression": "1+1"})],
    "```\nAction: calc(expression='1')\n```": [("calc", {"expression": "1"})],
    "Action:\n```python\ncalc(expression='1')\n```\nThought: x": [("calc", {"expression": "1"}), ("thought", "x")],
    "```\nFinal Answer: 42\n```": [("answer", "42")],
    "Final Answer:\n```py\nx\n```": [("answer", "```py\nx\n```")],
    # several lines
    'Action: calc(\n  expression="1",\n  precision=2\n)': [("calc", {"expression": "1", "precision": 2})],
    "Action: write(text='a\nAction: b()\n')": [("write", {"text": "a\nAction: b()\n"})],
    'Action: write(text="""a "b"\nFinal Answer: c""")': [("write", {"text": 'a "b"\nFinal Answer: c'})],
    # several actions
    "Action: f(a=1)\nAction: g(b=2)": [("f", {"a": 1}), ("g", {"b": 2})],
    "Action: f()\nObservation: 3\nFinal Answer: 3": [("f", {})],
    "Action: f()\nFinal Answer: 3": [("f", {}), ("answer", "3")],
    # actions that cannot be read
    "Action: calc(expression='1'": [("error", NOT_CLOSED)],
    "Action: calc(expression=(1": [("error", NOT_CLOSED)],
    "Action: calc(expression='1)": [("error", "a text in the call of calc has no closing '")],
    "Action: calc(a=1, a=2)": [("error", "calc has the argument 'a' twice")],
    "Action: think very hard": [("error", "think has no arguments in parentheses; write think(KEY=VALUE, ...)")],
    "Action: 42": [("error", "'42' is not NAME(KEY=VALUE, ...)")],
    "Action:": [("error", "'' is not NAME(KEY=VALUE, ...)")],
    'Action: {"tool": 3}': [("error", 'the object is not {"name": TOOL, "arguments": {...}}')],
    "Action: f(\n" * 20: [("error", "the call of f is not closed with a parenthesis")] * 8,
    "Action: calc(expression='1'\nThought: go on": [("error", NOT_CLOSED), ("thought", "go on")],
}


@pytest.mark.row("ARL 18")
def test_the_table_has_40_cases():
    assert len(TABLE) >= 40


@pytest.mark.parametrize("text", TABLE)
@pytest.mark.row("ARL 18")
def test_a_reply_is_read_as_the_table_says(text):
    assert [short(part) for part in read_reply(text, PARAMETERS)] == TABLE[text]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,9}", fullmatch=True)
ARGUMENTS = st.dictionaries(NAMES | st.text(), JSON, max_size=4)
PLAIN = st.text("abc ,.()=\"'{}[]\\é\n").map(lambda text: " ".join(text.split()))


def reply(thought, calls, answer):
    """Write a reply as the prompt asks for it."""
    lines = [f"Thought: {thought}"] if thought else []
    for name, arguments in calls:
        given = ", ".join(f"{key}={json.dumps(value)}" for key, value in arguments.items())
        plain = all(re.fullmatch(r"[A-Za-z_]\w*", key, re.ASCII) for key in arguments)
        lines.append(f"Action: {name}({given if plain else json.dumps(arguments)})")
    return "\n".join(lines if answer is None else [*lines, f"Final Answer: {answer}"])


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(PLAIN, st.lists(st.tuples(NAMES, ARGUMENTS), max_size=3), st.none() | PLAIN)
@pytest.mark.row("ARL 18")
def test_what_is_written_is_read_back(thought, calls, answer):
    expected = [("thought", thought)] if thought else []
    expected += [*calls] + ([] if answer is None else [("answer", answer)])
    assert [short(part) for part in read_reply(reply(thought, calls, answer))] == expected


@given(st.text("Action: f('\"\\({[)}]=,\nThought:`{}1"))
@pytest.mark.row("ARL 18")
def test_any_text_is_read(text):
    assert all(short(part) for part in read_reply(text))
