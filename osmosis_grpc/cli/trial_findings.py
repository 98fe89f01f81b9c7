"""Turns the observations of a trial into findings about the agent loop.

A trial observes a tool call if osmosis_grpc.rollout.tools runs the call or makes its error message. It observes an
exception if the agent calls ctx.record_tool_call while handling the exception. For any other tool call, it observes
only the tool message with the result.
"""

import difflib
import inspect
import re
from collections.abc import Iterator
from typing import Any

from osmosis_grpc.agent.import_hints import import_hint
from osmosis_grpc.agent.results import RolloutResult
from osmosis_grpc.agent.reward_decorator import BadRewardError
from osmosis_grpc.agent.run_outcome import RunOutcome
from osmosis_grpc.agent.sync_context import RunNotAsyncError
from osmosis_grpc.agent.tool_calls import ToolRunnerNotAsyncError
from osmosis_grpc.agent.tool_runs import ToolRun
from osmosis_grpc.agent.validator import Finding, Place, Severity, one_line, place_of, place_of_error
from osmosis_grpc.cli.trial import MOST_CHATS, Trial
from osmosis_grpc.protocol.errors import ToolExecutionError
from osmosis_grpc.protocol.types import ChatPurpose, OutcomeStatus
from osmosis_grpc.protocol.types.json_values import number_of
from osmosis_grpc.protocol.types.outcome import describe
from osmosis_grpc.protocol.types.requests import DEFAULT_MAX_TURNS
from osmosis_grpc.records.reading.message_text import mapping

LONG_BLOCK = 1.0
"""Blocking the event loop for at least this many seconds is an error; anything shorter is a warning."""
_PARAMETERS = frozenset(
    """
    temperature top_p top_k min_p typical_p max_tokens max_completion_tokens min_tokens stop stop_token_ids ignore_eos
    seed n best_of frequency_penalty presence_penalty repetition_penalty length_penalty logit_bias logprobs top_logprobs
    prompt_logprobs tool_choice parallel_tool_calls response_format reasoning_effort verbosity user store metadata
    service_tier modalities prediction safety_identifier prompt_cache_key extra_body chat_template_kwargs guided_json
    guided_regex guided_choice guided_grammar structured_outputs include_stop_str_in_output skip_special_tokens
    spaces_between_special_tokens add_generation_prompt continue_final_message bad_words regex ebnf json_schema
    """.split()  # noqa: SIM905
)
"""Sampling parameters of OpenAI, vLLM and SGLang."""
_UNKNOWN = re.compile(
    r"\b(unknown|no such|unsupported|undefined|not found|does not exist|no (?:tool|function))\b", re.IGNORECASE
)
_ERROR = re.compile(r"\s*(error|exception|traceback)\b", re.IGNORECASE)
_LONGEST = 200  # the most characters of a quoted text in a finding
_EXAMPLES = "`examples` in its schema choose other arguments"

_Row = tuple[str, Severity, str, str, Place | None]
"""A code, a severity, a message, a hint, and a place. None stands for the place of the method run."""


def findings_of(trial: Trial, agent_loop: Any) -> list[Finding]:
    """Return all findings of a trial: errors and warnings."""
    workflow = getattr(agent_loop, "workflow", None)
    cls = workflow if isinstance(workflow, type) else type(agent_loop)
    if trial.get_tools_error is not None:
        place = place_of(getattr(agent_loop, "get_tools", None), cls)
        hint = "make get_tools(self, request) return for any request"
        return [Finding("GET_TOOLS_FAILED", one_line(trial.get_tools_error), hint, *place)]
    place = place_of(getattr(cls, "run", None), cls)
    rows = dict.fromkeys([*_end(trial), *_tools(trial), *_chats(trial), *_blocks(trial)])
    return [Finding(code, text, hint, *(at or place), severity=severity) for code, severity, text, hint, at in rows]


def _end(trial: Trial) -> Iterator[_Row]:
    outcome, result = trial.outcome, trial.result
    if trial.endless:
        text = f"it sent more than {MOST_CHATS} chats, and max_turns is {DEFAULT_MAX_TURNS}"
        yield _timed_out(text, None)
    if trial.endless or outcome is None:
        return
    text = outcome.failure.message if outcome.failure else str(outcome.status)
    failed, completed = outcome.status is OutcomeStatus.FAILED, outcome.status is OutcomeStatus.COMPLETED
    if failed and outcome.failure is not None and outcome.failure.boundary == "grader":
        hint = "correct this line; a grader sets a reward of each sample with ctx.set_sample_reward(id, reward)"
        at = (outcome.failure.file, outcome.failure.line) if outcome.failure.file else None
        yield "GRADER_FAILED", "error", text, hint, at
    elif failed and text.startswith("the workflow has no sample"):
        hint = "ask the model with an OsmosisStrandsAgent, or with await get_rollout_context().chat(messages)"
        yield "NO_CHAT", "error", text, hint, None
    elif failed and _is_bad_result(trial):
        error = trial.error
        text = describe(error) if isinstance(error, BadRewardError) else text
        hint = "end run with return ctx.complete(messages, reward=...) or ctx.error(text); a reward is a finite number"
        yield "BAD_RESULT", "error", text, hint, None
    elif outcome.status is OutcomeStatus.DEADLINE_EXCEEDED:
        yield _timed_out(text, _place(trial.error))
    elif not completed:
        yield _raised(trial, text, failed=failed)
    elif not trial.chats:
        hint = "ask the model with await ctx.chat(messages); without `await` it is not asked"
        yield "NO_CHAT", "warning", "run ended without a chat", hint, None
    if isinstance(result, RolloutResult) and result.status == "COMPLETED":
        hint = "append a tool message with the call's id for every call of a reply"
        for unanswered in _unanswered(result.final_messages):
            yield "BAD_RESULT", "error", unanswered, hint, None


def _is_bad_result(trial: Trial) -> bool:
    """Return whether run returned something that is not a result, or a result with a bad reward."""
    result = trial.result
    if isinstance(result, RolloutResult):
        return result.status == "COMPLETED" and result.reward is not None and number_of(result.reward) is None
    return isinstance(result, RunOutcome) or trial.returned or isinstance(trial.error, BadRewardError)


def _timed_out(text: str, place: Place | None) -> _Row:
    hint = "end the loop after ctx.request.max_turns chats, give every wait a timeout, or pass a longer --timeout"
    return "RUN_TIMED_OUT", "error", text, hint, place


def _raised(trial: Trial, text: str, *, failed: bool) -> _Row:
    error = trial.error
    hint = "correct this line, or give up on purpose with return ctx.error(text)"
    if error is None or not failed:
        return "RUN_FAILED", "error", text, hint, None
    tool = next((run for run in trial.runs if run.error is error), None)
    if tool is not None:
        name = f"the tool {tool.name}" if tool.name else "a tool"
        hint = "catch it in the function that runs a call, and return create_tool_error_result(call_id, text)"
        text = f"run ended with the exception of {name}: {_short(one_line(error))}"
        return "RUN_FAILED", "warning", text, hint, _place(error)
    if isinstance(error, ToolRunnerNotAsyncError):
        return _bad_tool(f"run raised {one_line(error)}", "write async def for the function that runs a call", error)
    answered = {run.call_id for run in trial.runs}
    newest = [name for key, (name, _) in trial.called.items() if key.partition("/")[2] not in answered]
    after = f", after a reply that calls {', '.join(newest)}" if newest else ""
    hint = _usual_mistake(error) or import_hint(error, hint)
    return "RUN_FAILED", "error", f"run raised {one_line(error)}{after}", hint, _place(error)


def _usual_mistake(error: BaseException) -> str:
    """Return the hint for a common mistake, or "" for any other exception."""
    if isinstance(error, KeyError):
        return (
            "the task of this check has a label, and only ground_truth in its metadata; `test -d FILE` runs your rows"
        )
    if isinstance(error, AttributeError) and isinstance(error.obj, dict):
        return 'messages and tool calls are dicts: message["content"], call["function"]["name"]'
    if isinstance(error, RunNotAsyncError):
        return "write async def run, and await in it: return await helper(ctx)"
    if isinstance(error, AttributeError) and inspect.iscoroutine(error.obj):
        return "write await before the call: reply = await ctx.chat(messages)"
    if isinstance(error, TypeError) and "can't be used in 'await' expression" in str(error):
        return "leave `await` out, or write async def run"
    if isinstance(error, TypeError | ValueError) and "coroutine" in str(error):
        return "write await before the call: reply = await ctx.chat(messages)"
    return ""


def _chats(trial: Trial) -> Iterator[_Row]:
    asked: dict[str, list[Any]] = {}
    rewritten: list[str] = []
    unknown: dict[str, None] = {}
    for request, _ in trial.chats:
        unknown |= dict.fromkeys(name for name in request.params if name not in _PARAMETERS)
        if request.purpose is ChatPurpose.JUDGE:
            continue
        earlier = asked.setdefault(request.sample, [])
        if earlier and not request.parent_chat and request.messages not in earlier:
            rewritten.append(f"chat {request.chat_number} of sample {request.sample}")
        earlier.append(request.messages)
    if rewritten:
        others = f" ({len(rewritten) - 1} more like it)" if len(rewritten) > 1 else ""
        text = f"{rewritten[0]} does not continue an earlier chat of its sample, so it begins a new segment{others}"
        hint = "pass the whole history and only append to it; another conversation is another sample="
        yield "HISTORY_REWRITTEN", "warning", text, hint, None
    for name in unknown:
        near = difflib.get_close_matches(name, _PARAMETERS, 1, 0.7)
        text = f"ctx.chat got {name}, which is not a known sampling parameter"
        text += f"; is {near[0]} meant?" if near else ""
        hint = "correct the name, or ignore this if the trainer's model server knows it: it is sent as it is"
        yield "UNKNOWN_PARAMETER", "warning", text, hint, None


def _tools(trial: Trial) -> Iterator[_Row]:
    reported: dict[int, BaseException] = {}
    failed_calls: set[str] = set()
    for run in trial.runs:
        if id(run.error) in reported or not (run.error or run.error_text):
            continue
        if run.error is not None:
            reported[id(run.error)] = run.error
        failed_calls.add(run.call_id)
        yield _failed(run, *_call(trial, run))
    for call_id, content in _answers(trial):
        repeats = any(str(error) and str(error) in content for error in reported.values())
        if call_id not in failed_calls and _ERROR.match(content) and not repeats:
            name = next((name for key, (name, _) in trial.called.items() if key.endswith(f"/{call_id}")), "a tool")
            text = f"the tool {name} answered what looks like an error: {content!r}"
            yield "TOOL_FAILED", "warning", text, f"the tool may be wrong; {_EXAMPLES}", None
    called = {name for name, _ in trial.called.values()}
    never = [name for name in trial.offered if name not in called]
    if never and trial.outcome is not None and trial.outcome.status == "COMPLETED":
        text = f"never called: {', '.join(never)}; chats until the end: {trial.outcome.metrics.num_llm_calls}"
        hint = "let the model reply until it calls no tool; a tool that is never offered is not needed"
        yield "TOOLS_NEVER_CALLED", "warning", text, hint, None


def _call(trial: Trial, run: ToolRun) -> tuple[str, str]:
    call = next((call for key, call in trial.called.items() if key.endswith(f"/{run.call_id}")), None)
    names = {name for name, _ in trial.called.values()}
    only = next(iter(trial.called.values())) if len(names) == 1 else ("", "")
    return call or (run.name, "") if call or run.name else only


def _failed(run: ToolRun, name: str, arguments: str) -> _Row:
    tool = f"the tool {name}" if name else "a tool"
    called = f", called with {_short(arguments)}" if arguments else ""
    error = run.error
    names_agree = "make the names that get_tools returns and the names that run looks up agree"
    if error is None:
        text = f"{tool} answered with an error: {_short(run.error_text)!r}{called}"
        if _says_unknown(run.error_text, name):
            return "TOOL_FAILED", "error", text, names_agree, None
        return "TOOL_FAILED", "warning", text, f"the tool may be wrong; {_EXAMPLES}", None
    if name and (error.args == (name,) or getattr(error, "name", "") == name or _says_unknown(describe(error), name)):
        text = f"the agent does not know {tool}, which the model is offered: it raised {_short(one_line(error))}"
        return _bad_tool(f"{text}{called}", names_agree, error)
    text = f"{tool} raised {_short(one_line(error))}{called}"
    if isinstance(error, TypeError) and re.search(r"\bargument", str(error)):
        return _bad_tool(
            text, "make the properties of the tool's schema and the parameters of its function agree", error
        )
    hints = {
        TimeoutError: "make it faster, or give it more time: @tool(timeout=SECONDS)",
        (ToolExecutionError, OSError): f"it may need a service that does not run here; {_EXAMPLES}",
        ValueError: "it may be right to refuse; to see it run, put a value that it takes into `examples` in its schema",
    }
    for kind, hint in hints.items():
        if isinstance(error, kind):  # type: ignore[arg-type]
            return "TOOL_FAILED", "warning", text, hint, _place(error)
    return _bad_tool(text, "correct the tool; a tool that refuses its arguments raises ValueError", error)


def _bad_tool(text: str, hint: str, error: BaseException) -> _Row:
    return "TOOL_FAILED", "error", text, hint, _place(error)


def _says_unknown(text: str, name: str) -> bool:
    """Return whether a text says that there is no tool with this name."""
    about_tools = re.search(r"\b(tool|function)\b", text, re.IGNORECASE)
    return bool(name and name in text and about_tools and _UNKNOWN.search(text))


def _answers(trial: Trial) -> Iterator[tuple[str, str]]:
    """Yield the call id and the text of each tool message that has text."""
    outcome = trial.outcome
    for sample in outcome.samples.values() if outcome else ():
        for message in sample.messages:
            if message.get("role") == "tool" and isinstance(message.get("content"), str):
                yield str(message.get("tool_call_id")), _short(message["content"])


def _blocks(trial: Trial) -> Iterator[_Row]:
    """Yield the findings about a blocked event loop: for each place, the longest block."""
    longest: dict[tuple[str, str], float] = {}
    for block in trial.blocks:
        key = block.where, block.tool
        longest[key] = max(block.seconds, longest.get(key, 0.0))
    hint = "use await asyncio.to_thread(...) for code that blocks, or a library that is async"
    for (where, tool), seconds in longest.items():
        who = f"the tool {tool} blocked the event loop" if tool else "the event loop was blocked"
        text = f"{who} for {seconds:.2f} s{', and still is' if trial.stuck else ''}"
        place = re.fullmatch(r"(.*):(\d+) in .*", where, re.DOTALL)
        if place:
            severity: Severity = "error" if trial.stuck or seconds >= LONG_BLOCK else "warning"
            yield "BLOCKING_CALL", severity, f"{text} at {where}", hint, (place[1], int(place[2]))
        elif trial.stuck:
            yield "BLOCKING_CALL", "error", text, hint, None


def _unanswered(messages: Any) -> Iterator[str]:
    """Yield a message for each tool call of a conversation that no tool message answers."""
    known = [mapping(message) for message in messages] if isinstance(messages, list | tuple) else []
    answered = {str(message.get("tool_call_id")) for message in known if message.get("role") == "tool"}
    for index, message in enumerate(known):
        calls = message.get("tool_calls") if message.get("role") == "assistant" else None
        for call in map(mapping, calls if isinstance(calls, list | tuple) else ()):
            if str(call.get("id")) not in answered:
                name = mapping(call.get("function")).get("name")
                yield f"final_messages[{index}] calls {name} ({call.get('id')}), and no tool message answers it"


def _place(error: BaseException | None) -> Place | None:
    place = place_of_error(error) if error is not None else (None, None)
    return place if place[0] else None


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 4] + " ..."
