"""Eval functions, which score an ended rollout. The name of the first parameter decides what a function gets.

    def exact(solution_str, ground_truth, extra_info=None, **kwargs) -> float    the last text of the assistant
    def polite(messages, ground_truth, metadata, **kwargs) -> float              the whole conversation

A function may be async. Others run on a thread.
"""

import asyncio
import contextlib
import copy
import hashlib
import inspect
import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osmosis_grpc.agent.loader import load_object
from osmosis_grpc.agent.source_version import AgentVersion
from osmosis_grpc.agent.validator import place_of_error
from osmosis_grpc.protocol.types import Annotation, Message
from osmosis_grpc.protocol.types.json_values import number_of
from osmosis_grpc.protocol.types.outcome import clip, describe, printable
from osmosis_grpc.records.evaluate.errors import EvalFunctionError
from osmosis_grpc.supervise import DaemonThreads

SIMPLE, FULL = "solution_str", "messages"
"""The possible names of the first parameter."""
GIVEN = {
    SIMPLE: (SIMPLE, "ground_truth", "extra_info", "metadata"),
    FULL: (FULL, "ground_truth", "metadata", "extra_info"),
}
"""For each first parameter, the arguments that a function gets by name if it has parameters for them."""
THREADS = 32
"""How many functions that are not async may run at once."""
MOST_ERROR_BYTES = 2048
OWN_REWARD = "reward"
"""The name of the only score in a run without eval functions: the rollout's own reward."""
MOST_NAME_CHARS = 200
"""How many characters of a function's name the ids of annotations contain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The input of an eval function: an ended rollout and its row."""

    messages: Sequence[Message]
    """The whole conversation."""
    label: str | None
    """The reference answer."""
    metadata: Mapping[str, Any]

    @property
    def solution(self) -> str:
        """The text of the last assistant message that has text, or an empty string."""
        for message in reversed(self.messages):
            content = message.get("content")
            if message.get("role") == "assistant" and content:
                return content if isinstance(content, str) else _joined(content)
        return ""


class EvalFunction:
    """One eval function. `name` is MODULE:FUNCTION. Raises EvalFunctionError if the signature is invalid."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self._function = function
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError) as error:
            raise EvalFunctionError(f"{name}: its signature is not known: {error}") from None
        first = parameters[0].name if parameters else ""
        if first not in GIVEN:
            found = f"the first parameter is {first}" if first else "it has no parameters"
            raise EvalFunctionError(f"{name}: {found}; name it solution_str (the last text) or messages (all of them)")
        self._full = first == FULL
        takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
        names = {each.name for each in parameters if each.kind is not inspect.Parameter.POSITIONAL_ONLY}
        self._names = [given for given in GIVEN[first] if takes_all or given in names]
        try:
            inspect.signature(function).bind(**dict.fromkeys(self._names))
        except TypeError as error:
            given = ", ".join(GIVEN[first])
            raise EvalFunctionError(f"{name}: {error}; it is called with the named arguments {given}") from None
        call = getattr(function, "__call__", None)  # noqa: B004 - an object may have a coroutine function as __call__
        self._asynchronous = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
        self.version = AgentVersion.of_function(function)

    @property
    def annotation_id(self) -> str:
        """The id of the annotations that have this function's scores. It changes when the function's source changes."""
        return score_id(self.name, self.version.digest)

    def annotation(self, score: float, author: str) -> Annotation:
        """Return the annotation for a score."""
        return Annotation(id=self.annotation_id, author=author, reward=score, labels=(self.name[:MOST_NAME_CHARS],))

    def failed_annotation(self, error: str, author: str) -> Annotation:
        """Return the annotation for a failed score. Its id depends on the error, and never equals the id of a score."""
        unique = hashlib.sha256(error.encode(errors="backslashreplace")).hexdigest()[:8]
        note = printable(f"no score: {error}", keep="\n\t")
        label = self.name[:MOST_NAME_CHARS]
        return Annotation(id=f"{self.annotation_id}:{unique}", author=author, labels=(label,), note=note)

    async def __call__(self, scored: Scored, threads: DaemonThreads) -> float:
        """Return the score. Raises EvalFunctionError if the function raises or does not return a finite number."""
        values: dict[str, Any] = {
            SIMPLE: scored.solution,
            FULL: copy.deepcopy(list(scored.messages)),
            "ground_truth": scored.label,
            "extra_info": copy.deepcopy(dict(scored.metadata)),
            "metadata": copy.deepcopy(dict(scored.metadata)),
        }
        arguments = {name: values[name] for name in self._names}
        try:
            if self._asynchronous:
                score = await self._function(**arguments)
            else:
                score = await threads.run(lambda: self._function(**arguments))
                if inspect.isawaitable(score):
                    score = await score
        except (Exception, SystemExit) as error:
            raise EvalFunctionError(_failure(error)) from error
        number = number_of(score)
        if number is None:
            raise EvalFunctionError(f"it returned {reprlib.repr(score)}, not a finite number")
        return number


def score_id(name: str, digest: str) -> str:
    """Return the id of a score's annotation. It depends on the name and the source digest of the scoring function."""
    if len(name) > MOST_NAME_CHARS:
        name = f"{name[:MOST_NAME_CHARS]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return f"{name}@{digest}"


def load_eval_functions(names: Sequence[str]) -> list[EvalFunction]:
    """Import the eval functions named MODULE:FUNCTION. Raises LoadError and EvalFunctionError."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise EvalFunctionError(f"{twice[0]} is given twice")
    functions = []
    for name in names:
        found = load_object(name, _suggest)
        if not callable(found) or isinstance(found, type):
            kind = "class" if isinstance(found, type) else type(found).__name__
            raise EvalFunctionError(f"{name} is a {kind}, not a function")
        functions.append(EvalFunction(name, found))
    return functions


class Scorer:
    """Scores ended rollouts with eval functions. `timeout` is how many seconds one call may take."""

    def __init__(self, functions: Sequence[EvalFunction], timeout: float | None = None) -> None:
        self.functions = functions
        self._timeout = timeout
        self._threads = DaemonThreads(THREADS, replaced=THREADS)

    async def score(self, scored: Scored, known: Mapping[str, float]) -> tuple[dict[str, float], dict[str, str]]:
        """Call the functions concurrently, and return their scores and their failures, by name.

        `known` maps annotation ids to scores that are known already. The functions of these scores are not called.
        """
        scores: dict[str, float] = {}
        errors: dict[str, str] = {}

        async def call(function: EvalFunction) -> None:
            if function.annotation_id in known:
                scores[function.name] = known[function.annotation_id]
                return
            try:
                async with asyncio.timeout(self._timeout):
                    scores[function.name] = await function(scored, self._threads)
            except TimeoutError:
                errors[function.name] = f"it took longer than {self._timeout:g} s"
            except EvalFunctionError as error:
                errors[function.name] = str(error)

        await asyncio.gather(*map(call, self.functions))
        order = [function.name for function in self.functions]
        return ({name: scores[name] for name in order if name in scores}, {n: errors[n] for n in order if n in errors})

    def close(self) -> None:
        """End the threads."""
        self._threads.close()


def _failure(error: BaseException) -> str:
    text = describe(error)
    name = type(error).__name__
    with contextlib.suppress(Exception):
        file, line = place_of_error(error)
        if file:
            return clip(f"{name}: {text}" if text != name else name, MOST_ERROR_BYTES) + f" at {_short(file)}:{line}"
    return clip(f"{name}: {text}" if text != name else name, MOST_ERROR_BYTES)


def _short(file: str) -> str:
    """Return a path relative to the current folder if the file is in or below it, else the whole path."""
    path = os.path.relpath(file)
    return file if path.startswith(os.pardir) else path


def _suggest(found: Any) -> str:
    """Return a hint that lists the functions of a module that can be eval functions."""
    names = (
        [name for name, value in vars(found).items() if _is_eval_function(value)] if hasattr(found, "__dict__") else []
    )
    return f"; it has: {', '.join(names)}" if names else ""


def _is_eval_function(value: Any) -> bool:
    try:
        return inspect.isfunction(value) and next(iter(inspect.signature(value).parameters), "") in GIVEN
    except (TypeError, ValueError):
        return False


def _joined(content: Any) -> str:
    if not isinstance(content, list | tuple):
        return str(content)
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
