"""Tells whether the model saw what an agent sent, and whether the agent got what was sampled for its request.

A prompt shows a history if everything but the replies in it is exactly what the template writes for the request of the
agent: system message, tools, texts, results, and the beginning of the next turn. A reply in it may stand as the
template writes it, or as the engine sampled it, with or without its reasoning.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from comparison.models import END, Model
from comparison.replies import parse

Json = dict[str, Any]
_PLACE = "@@reply {}@@"
_PLACES = re.compile(r"@@reply \d+@@")


@dataclass(frozen=True)
class Explained:
    """What is wrong with the conversations, and the steps whose replies the agent got."""

    wrong: list[str]
    got: set[int]


def explained(steps: Sequence[Json], requests: Sequence[Json], model: Model) -> Explained:
    """Pair the steps of the engine with the requests of the agent."""
    sampled = [_Sampled.of(step, steps, model) for step in steps]
    known: dict[str, list[_Sampled]] = {}
    for each in sampled:
        known.setdefault(plain(each.message, model), []).append(each)
    asked = [_Request.of(request, model) for request in requests]
    wrong, got, shown = [], set[int](), dict[int, set[int]]()
    for each in sampled:
        prompts = [tidy(model.decode(prompt)) for prompt in each.prompts]
        shown[each.number] = {
            n for n, one in enumerate(asked) if any(one.shows(text, known, model) for text in prompts)
        }
        if not shown[each.number]:
            wrong.append(f"request {each.number} showed the model a history that the agent did not send")
    for number, request in enumerate(requests):
        if request["got"] is None:
            continue
        text = plain(request["got"], model)
        found = [s.number for s in known.get(text, ()) if number in shown[s.number] and s.number not in got]
        if found:
            got.add(found[0])
        else:
            wrong.append(f"the agent got a reply to its request {number} that the engine did not sample for it")
    return Explained(wrong, got)


@dataclass(frozen=True)
class _Sampled:
    """A step of the engine. If it goes on with a reply that was cut, `prompts` have that of the beginning, too."""

    number: int
    prompts: list[list[int]]
    text: str
    message: Json

    @classmethod
    def of(cls, step: Json, steps: Sequence[Json], model: Model) -> "_Sampled":
        prompts, ids, prompt = [step["prompt"]], step["ids"], step["prompt"]
        for other in reversed(steps):
            if other["step"] < step["step"] and other["ids"] and prompt == other["prompt"] + other["ids"]:
                prompt, ids = other["prompt"], other["ids"] + ids
                prompts.append(prompt)
        own = step["ids"] if len(prompts) == 1 else ids
        text = model.decode(own)
        return cls(step["step"], prompts, text.removesuffix(END[model.name]), parse(text, model, step["stop"]))


@dataclass(frozen=True)
class _Request:
    """A request as the template writes it: its texts between the replies, and the replies."""

    parts: list[str]
    replies: list[Json]

    @classmethod
    def of(cls, request: Json, model: Model) -> "_Request":
        messages = [m for m in request["messages"] if m["role"] != "system" or m.get("content")]
        replies = [message for message in messages if message["role"] == "assistant"]
        places = iter(range(len(replies)))
        shown = [
            {"role": "assistant", "content": _PLACE.format(next(places))} if message["role"] == "assistant" else message
            for message in messages
        ]
        return cls(_PLACES.split(tidy(model.decode(model.render(shown, request["tools"])))), replies)

    def shows(self, text: str, known: dict[str, list[_Sampled]], model: Model) -> bool:
        """Tell whether a prompt is this request."""
        first, *rest = self.parts
        if not text.startswith(first):
            return False
        at = len(first)
        for part, reply in zip(rest, self.replies, strict=True):
            last = part is rest[-1]
            end = len(text) - len(part) if last and text.endswith(part) else -1 if last else text.find(part, at)
            if end < at or not _is_written(text[at:end], reply, known, model):
                return False
            at = end + len(part)
        return at == len(text)


def _is_written(text: str, reply: Json, known: dict[str, list[_Sampled]], model: Model) -> bool:
    """Tell whether a text is a reply in a history."""
    if END[model.name] in text:
        return False
    sampled = known.get(plain(reply, model), [])
    if any(text.strip() == each.text.strip() for each in sampled):
        return True
    written = parse(text, model)
    reasons = {_reasoning(each) for each in (reply, *(each.message for each in sampled))}
    return plain(written, model) == plain(reply, model) and _reasoning(written) in reasons | {""}


def _reasoning(message: Json) -> str:
    inside = re.search(r"<think>(.*?)</think>", str(message.get("content") or ""), re.S)
    return str(message.get("reasoning_content") or message.get("reasoning") or (inside[1] if inside else "")).strip()


def plain(message: Json, model: Model) -> str:
    """Return a reply without what templates may write otherwise: reasoning, outer blanks, the form of arguments."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    calls = message.get("tool_calls")
    if not calls:
        read = parse(content, model)
        content, calls = read["content"] or "", read.get("tool_calls")
    content = re.sub(r"<think>.*?</think>", "", content, flags=re.S)
    functions = [(c["function"]["name"], _arguments(c["function"]["arguments"])) for c in calls or []]
    return json.dumps([content.strip(), functions], sort_keys=True)


def _arguments(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def tidy(text: str) -> str:
    """Return a prompt whose tools have one order of keys; the model reads the same in any order."""
    return re.sub(
        r"(<tools>\n|\[TOOLS\])(.*?)(\n</tools>|\[/TOOLS\])",
        lambda found: found[1] + "\n".join(map(_tool, found[2].splitlines())) + found[3],
        text,
        flags=re.S,
    )


def _tool(line: str) -> str:
    try:
        return json.dumps(json.loads(line), sort_keys=True)
    except ValueError:
        return line
