"""Holds what a trainer got against what the engine sampled. It believes only the logs of engine and agent.

A reply is *delivered* if a row has the prompt that the engine saw, then exactly the sampled ids, all of them trained,
with the sampled logprobs. The verdicts, worst first:

- `wrong`: a trained token that the engine did not sample behind that prompt, a logprob or a version of the weights that
  it did not give, a prompt that is not what the agent sent, or a reply to the agent that was not sampled for what it
  asked;
- `lost`: a reply that the agent kept is not delivered, and nothing says so;
- `no logprobs`: the tokens are delivered without their logprobs;
- `failed`: the rollout ends with an error where the agent expects none, and the system says so;
- `left out`: the same, but the system itself says that it leaves something out;
- `twice`: everything is delivered, and a reply is trained in two rows;
- `split`: everything is delivered, in more rows than `cases` calls right;
- `exact`: every kept reply is delivered once.

`dropped` counts the replies that the agent did not keep and that are trained.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison.adapter import Delivered, Row
from comparison.cases import CASES, GOT, Case
from comparison.history import explained
from comparison.models import Model

NEAR = 1e-5
"""Logprobs travel as 32-bit floats."""
Json = dict[str, Any]


@dataclass(frozen=True)
class Verdict:
    """What one system did in one case."""

    verdict: str
    rows: int = 0
    why: str = ""
    dropped: int = 0
    said: str = ""
    versions: str = ""


@dataclass(frozen=True)
class Truth:
    """The engine's steps of a rollout, and the requests of its agent: {messages, tools, got}."""

    steps: Sequence[Json]
    requests: Sequence[Json]
    ended: bool = True

    @classmethod
    def read(cls, key: str, engine_log: Path, agents_log: Path) -> "Truth":
        """Read both logs."""
        steps = [step for step in _lines(engine_log) if step["id"] == key]
        agents = [agent for agent in _lines(agents_log) if agent["key"] == key]
        requests = [request for agent in agents for request in agent["requests"]]
        return cls(steps, requests, bool(agents) and all(agent["ended"] for agent in agents))


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
    seen = explained(truth.steps, truth.requests, model)
    wanted = list(good) if case.kept is None else sorted(seen.got & good.keys()) if case.kept == GOT else case.kept
    kept = [int(number) for number in wanted if number in good]
    dropped = set(good) - set(kept) if case.kept == GOT else set(case.dropped)
    lost = [number for number in kept if good[number]["ids"] and not found[number]]
    missing = [number for number in wanted if number not in good]
    versions = _versions(delivered.rows, good, found)
    wrong = [f"{stray} trained tokens were not sampled there"] if stray else []
    wrong += problems["wrong"] + seen.wrong + (["versions are not those of the engine"] if versions == "other" else [])
    split = max(0, len(delivered.rows) - case.rows[1])
    twice = sum(count > 1 for count in found.values())
    verdict, why = "exact", ""
    if wrong:
        verdict, why = "wrong", "; ".join(wrong)
    elif not truth.steps or missing:
        verdict = "failed" if delivered.said else "lost"
        why = f"the engine was never asked for replies {missing or ''}"
    elif not truth.ended and case.rows[0]:
        verdict, why = "failed", "the agent could not end"
    elif lost:
        verdict, why = ("left out" if delivered.said else "lost"), f"replies {lost} of {kept}"
    elif problems["bare"]:
        verdict, why = "no logprobs", f"replies {problems['bare']}"
    elif twice:
        verdict, why = "twice", f"{twice} replies are trained in two rows"
    elif split:
        verdict, why = "split", f"{len(delivered.rows)} rows, where {case.rows[1]} are right"
    said, trained = delivered.said, sum(found[number] > 0 for number in dropped)
    return Verdict(verdict, len(delivered.rows), why, trained, said, versions)


def _found(rows: Sequence[Row], good: dict[int, Json]) -> tuple[Counter[int], list[list[bool]], dict[str, list[Any]]]:
    """Return how often each step is delivered, which trained tokens that explains, and what is wrong with logprobs."""
    found: Counter[int] = Counter()
    covered = [[False] * len(row.ids) for row in rows]
    problems: dict[str, list[Any]] = {"wrong": [], "bare": []}
    trained: dict[int, set[int]] = {}
    parts: list[tuple[int, list[bool], set[int]]] = []
    for row, marks in zip(rows, covered, strict=True):
        if len(row.mask) != len(row.ids) or (row.logprobs is not None and len(row.logprobs) != len(row.ids)):
            problems["wrong"].append("ids, mask and logprobs of a row have different lengths")
            continue
        if not {*row.mask} <= {0, 1}:
            problems["wrong"].append("a mask is neither 0 nor 1")
        for number, step in good.items():
            start, end = len(step["prompt"]), len(step["prompt"]) + len(step["ids"])
            same = row.ids[:start] == step["prompt"] and row.ids[start:end] == step["ids"]
            here = {at for at in range(start, end) if row.mask[at]} if same else set()
            if not here:
                continue
            found[number] += len(here) == end - start
            trained.setdefault(number, set()).update(here)
            parts.append((number, marks, here))
            if row.logprobs is None:
                problems["bare"].append(number)
            elif not all(_near(row.logprobs[at], step["logprobs"][at - start]) for at in here):
                problems["wrong"].append(f"logprobs of reply {number} are not those of the engine")
    for number in trained:
        found[number] = found[number] or int(_shared(number, good, trained))
    for number, marks, here in parts:
        for at in here if found[number] else ():
            marks[at] = True
    return found, covered, problems


def _near(given: Any, sampled: float) -> bool:
    return isinstance(given, int | float) and abs(given - sampled) <= NEAR  # NaN is near nothing


def _shared(number: int, good: dict[int, Json], trained: dict[int, set[int]]) -> bool:
    """Tell whether a reply is trained in parts: tokens with which another reply to its prompt began stand there."""
    step = good[number]
    start, at = len(step["prompt"]), set(trained[number])
    for other, twin in good.items():
        if other != number and twin["prompt"] == step["prompt"]:
            pairs = zip(twin["ids"], step["ids"], strict=False)
            same = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(twin["ids"]), len(step["ids"])))
            at |= {place for place in trained.get(other, ()) if place < start + same}
    return at >= set(range(start, start + len(step["ids"])))


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
