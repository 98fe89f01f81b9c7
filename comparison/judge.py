"""Holds what a trainer got against what the engine sampled. It believes only the logs of engine and agent.

A reply is *delivered* if a row has the prompt that the engine saw, then exactly the sampled ids, all of them trained,
with the sampled logprobs. The verdicts, worst first:

- `wrong`: a trained token that the engine did not sample behind that prompt, a logprob that it did not give, a prompt
  that is not the history which the agent sent, or a reply to the agent that nobody sampled;
- `lost`: a reply that the agent kept is not delivered, and nothing says so;
- `no logprobs`: the tokens are delivered without their logprobs;
- `failed`: the rollout ends with an error where the agent expects none, and the system says so;
- `left out`: the same, but the system itself says that it leaves something out;
- `exact`: every kept reply is delivered.

`split` counts the rows above those that `cases` calls right, `twice` the replies that are trained in two rows, and
`dropped` the replies that the agent did not keep and that are trained.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison.adapter import Delivered, Row
from comparison.cases import CASES, GOT, Case
from comparison.models import Model
from comparison.replies import parse

NEAR = 1e-5
"""Logprobs travel as 32-bit floats."""
Json = dict[str, Any]


@dataclass(frozen=True)
class Verdict:
    """What one system did in one case."""

    verdict: str
    rows: int = 0
    why: str = ""
    split: int = 0
    twice: int = 0
    dropped: int = 0
    said: str = ""
    versions: str = ""


@dataclass(frozen=True)
class Truth:
    """The engine's steps of a rollout, and what its agent sent and got."""

    steps: Sequence[Json]
    sent: Sequence[list[Json]]
    got: Sequence[Json]
    ended: bool = True

    @classmethod
    def read(cls, key: str, engine_log: Path, agents_log: Path) -> "Truth":
        """Read both logs."""
        steps = [step for step in _lines(engine_log) if step["id"] == key]
        agents = [agent for agent in _lines(agents_log) if agent["key"] == key]
        sent = [history for agent in agents for history in agent["sent"]]
        got = [message for agent in agents for message in agent["got"]]
        return cls(steps, sent, got, bool(agents) and all(agent["ended"] for agent in agents))


def _lines(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def judge(case: Case, truth: Truth, delivered: Delivered, model: Model) -> Verdict:
    """Return the verdict on a rollout."""
    good = {step["step"]: step for step in truth.steps if step["status"] == 200}
    found, covered, problems = _found(delivered.rows, good)
    stray = sum(
        bool(trained) and not known
        for row, marks in zip(delivered.rows, covered, strict=True)
        for trained, known in zip(row.mask, marks, strict=False)  # of a row with a wrong mask, that is said elsewhere
    )
    wanted = _kept(case, truth, good, model)
    kept = [number for number in wanted if number in good]
    dropped = set(good) - set(kept) if case.kept == GOT else set(case.dropped)
    lost = [number for number in kept if good[number]["ids"] and not found[number]]
    wrong = [f"{stray} trained tokens were not sampled there"] if stray else []
    wrong += problems["wrong"] + histories(truth, model)
    missing = [number for number in wanted if number not in good]
    verdict, why = "exact", ""
    if wrong:
        verdict, why = "wrong", "; ".join(wrong)
    elif not truth.steps or missing:
        verdict, why = (
            ("failed" if delivered.said else "lost"),
            f"the engine was never asked for replies {missing or ''}",
        )
    elif not truth.ended and case.rows[0]:
        verdict, why = "failed", "the agent could not end"
    elif lost:
        verdict, why = ("left out" if delivered.said else "lost"), f"replies {lost} of {kept}"
    elif problems["bare"]:
        verdict, why = "no logprobs", f"replies {problems['bare']}"
    return Verdict(
        verdict,
        len(delivered.rows),
        why,
        split=max(0, len(delivered.rows) - case.rows[1]),
        twice=sum(count > 1 for count in found.values()),
        dropped=sum(found[number] > 0 for number in dropped),
        said=delivered.said,
        versions=_versions(delivered.rows, good, found),
    )


def _kept(case: Case, truth: Truth, good: dict[int, Json], model: Model) -> list[int]:
    """Return the steps whose replies the agent kept."""
    if case.kept is None:
        return list(good)
    if case.kept != GOT:
        return [int(number) for number in case.kept]
    got = {_plain(message, model) for message in truth.got}
    return [
        n for n, step in good.items() if _plain(parse(model.decode(step["ids"]), model, step["stop"]), model) in got
    ]


def _found(rows: Sequence[Row], good: dict[int, Json]) -> tuple[Counter[int], list[list[bool]], dict[str, list[Any]]]:
    """Return how often each step is delivered, which trained tokens that explains, and what is wrong with logprobs."""
    found: Counter[int] = Counter()
    covered = [[False] * len(row.ids) for row in rows]
    problems: dict[str, list[Any]] = {"wrong": [], "bare": []}
    for row, marks in zip(rows, covered, strict=True):
        if len(row.mask) != len(row.ids) or (row.logprobs is not None and len(row.logprobs) != len(row.ids)):
            problems["wrong"].append("ids, mask and logprobs of a row have different lengths")
            continue
        for number, step in good.items():
            start, end = len(step["prompt"]), len(step["prompt"]) + len(step["ids"])
            same = row.ids[:start] == step["prompt"] and row.ids[start:end] == step["ids"]
            if not same or start == end or not all(row.mask[start:end]):
                continue
            found[number] += 1
            marks[start:end] = [True] * (end - start)
            if row.logprobs is None:
                problems["bare"].append(number)
            elif any(abs(a - b) > NEAR for a, b in zip(row.logprobs[start:end], step["logprobs"], strict=True)):
                problems["wrong"].append(f"logprobs of reply {number} are not those of the engine")
    return found, covered, problems


def histories(truth: Truth, model: Model) -> list[str]:
    """Return how the conversation differs from what the agent meant: prompts it did not send, replies not sampled."""
    if not truth.steps:
        return []
    replies: dict[str, set[str]] = {}
    for step in truth.steps:
        message = parse(model.decode(step["ids"]), model, step["stop"])
        raw = {"role": "assistant", "content": model.decode(step["ids"]).replace("<|im_end|>", "").replace("</s>", "")}
        replies.setdefault(_plain(message, model), set()).add(_plain(raw, model))
    sent = [[_plain(message, model) for message in history if not _silent(message)] for history in truth.sent]
    wrong = []
    for step in truth.steps:
        seen = [_plain(message, model) for message in model.read(step["prompt"])]
        if not any(_same(seen, history, replies) for history in sent):
            wrong.append(f"request {step['step']} showed the model a history that the agent did not send")
    for message in truth.got:
        if _plain(message, model) not in replies:
            wrong.append("the agent got a reply that the engine did not sample")
    return wrong


def _same(seen: list[str], sent: list[str], replies: dict[str, set[str]]) -> bool:
    """Tell whether a prompt shows a history. A reply may stand as the engine sampled it, with its stop string."""
    if len(seen) != len(sent):
        return False
    return all(a == b or a in replies.get(b, ()) for a, b in zip(seen, sent, strict=True))


def _silent(message: Json) -> bool:
    """Tell whether a message is one that templates do not write."""
    return message["role"] == "system" and not message.get("content")


def _plain(message: Json, model: Model) -> str:
    """Return a message without what templates may write otherwise: reasoning, outer blanks, the form of arguments."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    calls = message.get("tool_calls")
    if message["role"] == "assistant" and not calls:
        read = parse(content, model)
        content, calls = read["content"] or "", read.get("tool_calls")
        content = re.sub(r"<think>.*?</think>", "", content, flags=re.S)
    functions = [(c["function"]["name"], _arguments(c["function"]["arguments"])) for c in calls or []]
    return json.dumps([message["role"], content.strip(), functions], sort_keys=True)


def _arguments(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def _versions(rows: Sequence[Row], good: dict[int, Json], found: Counter[int]) -> str:
    """Return "right" if the rows name the version of the weights of each reply, "none" if they name none."""
    named = [str(version) for row in rows for version in row.versions or []]
    if not named:
        return "none"
    return "right" if named == [good[number]["version"] for number in sorted(good) if found[number]] else "other"


def judged(case: str, key: str, logs: tuple[Path, Path], answer: Json, model: Model) -> Verdict:
    """Return the verdict on the answer of an adapter."""
    if "error" in answer:
        return Verdict("failed", said=answer["error"])
    rows = [Row(**row) for row in answer["rows"]]
    return judge(CASES[case], Truth.read(key, *logs), Delivered(rows, answer["said"]), model)
