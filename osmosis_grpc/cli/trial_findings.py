"""Turns the observations of a trial into findings about the agent loop.

A trial sees a tool call if osmosis_grpc.rollout.tools runs it or makes its error message. It also sees an exception if
the agent calls ctx.record_tool_call while it handles that exception. Of other tool calls, a trial sees only the tool
messages that answer them.
"""

import difflib
import inspect
import re
from collections.abc import Iterator
from typing import Any

from osmosis_grpc.agent.current_context import ToolRun
from osmosis_grpc.agent.import_hints import import_hint
from osmosis_grpc.agent.result_check import RunOutcome
from osmosis_grpc.agent.results import RolloutResult
from osmosis_grpc.agent.reward_decorator import BadRewardError
from osmosis_grpc.agent.sync_agents import RunNotAsyncError
from osmosis_grpc.agent.tools import ToolRunnerNotAsyncError
from osmosis_grpc.agent.validator import Finding, Place, make, one_line, place_of, place_of_error
from osmosis_grpc.cli.trial import MOST_CHATS, Trial
from osmosis_grpc.protocol.errors import ToolExecutionError
from osmosis_grpc.protocol.types import ChatPurpose, OutcomeStatus
from osmosis_grpc.protocol.types.json_values import number_of
from osmosis_grpc.protocol.types.outcome import describe
from osmosis_grpc.protocol.types.requests import DEFAULT_MAX_TURNS
from osmosis_grpc.records.reading.message_text import mapping
from osmosis_grpc.records.reading.phrases import counted

HINTS = {
    "BRIEF_BLOCK": "use await asyncio.to_thread(...) if it takes this long in every rollout",
    "BLOCKING_CALL": "use await asyncio.to_thread(...) for code that blocks, or a library that is async",
    "RESULT_NOT_RETURNED": "end run with return ctx.complete(messages) or return ctx.error(text)",
    "BAD_RESULT": "return a reward, None, or a dict with the keys reward, rewards, metadata and finish_reason",
    "BAD_REWARD": "make the reward an int or a float, or None to leave it to a grader",
    "NON_FINITE_REWARD": "make the reward a finite number, or None to leave it to a grader",
    "TOOL_CALL_UNANSWERED": "append a tool message with the call's id for every call of a reply",
    "RUN_FAILED": "correct this line, or give up on purpose with return ctx.error(text)",
    "GRADER_FAILED": "correct this line; a grader sets a reward of each sample with ctx.set_sample_reward(id, reward)",
    "NO_SAMPLE": "ask the model with an OsmosisStrandsAgent, or with await get_rollout_context().chat(messages)",
    "NO_CHAT": "ask the model with await ctx.chat(messages); without `await` it is not asked",
    "NOT_AWAITED": "write await before the call: reply = await ctx.chat(messages)",
    "RUN_NOT_ASYNC": "write async def run, and await in it: return await helper(ctx)",
    "AWAIT_IN_SYNC_RUN": "leave `await` out, or write async def run",
    "MESSAGE_IS_A_DICT": 'messages and tool calls are dicts: message["content"], call["function"]["name"]',
    "RUN_TIMED_OUT": "give every wait a timeout of its own; --timeout SECONDS gives a slow agent longer",
    "MAX_TURNS_IGNORED": "end the loop after ctx.request.max_turns chats: for _ in range(ctx.request.max_turns): ...",
    "TOOL_RAISED": "correct the tool; a tool that refuses its arguments raises ValueError",
    "TOOL_REFUSED": "it may be right to refuse; to see it run, put a value that it takes into `examples` in its schema",
    "TOOL_NOT_ASYNC": "write async def, and await asyncio.to_thread(...) in it for code that blocks",
    "TOOL_ARGUMENTS_DIFFER": "make the properties of the tool's schema and the parameters of its function agree",
    "TOOL_UNKNOWN": "make the names that get_tools returns and the names that run looks up agree",
    "TOOL_ENDED_RUN": "catch it in the function that runs a call, and return create_tool_error_result(call_id, text)",
    "TOOL_FAILED": "it may need a service that does not run here; `examples` in its schema choose other arguments",
    "TOOL_TIMED_OUT": "make it faster, or give it more time: @tool(timeout=SECONDS)",
    "TOOL_ANSWERED_ERROR": "the tool may be wrong; `examples` in its schema choose other arguments",
    "TOOLS_NEVER_CALLED": "let the model reply until it calls no tool; a tool that is never offered is not needed",
    "HISTORY_REWRITTEN": "pass the whole history and only append to it; another conversation is another sample=",
    "UNKNOWN_PARAMETER": "correct the name, or ignore this if the trainer's model server knows it: it is sent as it is",
}
"""Each code that only --run reports, and its hint. The other codes are in osmosis_grpc.agent.validator."""

LONG_BLOCK = 1.0
"""Blocking the event loop for this many seconds is an error; anything shorter is a warning."""

WARNINGS = frozenset(
    {
        "BRIEF_BLOCK",
        "NO_CHAT",
        "TOOL_TIMED_OUT",
        "TOOL_ENDED_RUN",
        "TOOL_FAILED",
        "TOOL_REFUSED",
        "TOOL_ANSWERED_ERROR",
        "TOOLS_NEVER_CALLED",
        "HISTORY_REWRITTEN",
        "UNKNOWN_PARAMETER",
    }
)
"""The codes of warnings. The author of the agent may have intended what they report."""

_UNKNOWN = re.compile(r"\b(unknown|no such|unsupported|undefined|not found|does not exist|invalid)\b", re.IGNORECASE)
_A_TOOL = re.compile(r"\b(tool|function)\b", re.IGNORECASE)
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
_ERROR = re.compile(r"\s*(error|exception|traceback)\b", re.IGNORECASE)
_LONGEST = 200  # the most characters of a quoted text in a finding

Row = tuple[str, str, Place | None]
"""A code, a message, and a place. Without a place, the finding has the place of the method run."""


def findings_of(trial: Trial, agent_loop: Any) -> list[Finding]:
    """Return all errors and warnings."""
    workflow = getattr(agent_loop, "workflow", None)
    cls = workflow if isinstance(workflow, type) else type(agent_loop)
    if trial.get_tools_error is not None:
        place = place_of(getattr(agent_loop, "get_tools", None), cls)
        return [make("GET_TOOLS_EXCEPTION", one_line(trial.get_tools_error), place)]
    place = place_of(getattr(cls, "run", None), cls)
    rows = [*_end(trial), *_tools(trial), *_chats(trial), *_blocks(trial)]
    hints = HINTS | {"RUN_FAILED": import_hint(trial.error, HINTS["RUN_FAILED"])}
    return [
        Finding(code, text, hints[code], *(at or place), severity="warning" if code in WARNINGS else "error")
        for code, text, at in dict.fromkeys(rows)
    ]


def _end(trial: Trial) -> Iterator[Row]:
    """Yield the findings about the end of run."""
    outcome, result = trial.outcome, trial.result
    if trial.endless:
        text = f"it asked for more than {MOST_CHATS} chats, and max_turns is {DEFAULT_MAX_TURNS}"
        yield "MAX_TURNS_IGNORED", text, None
        return
    if outcome is None:
        return
    text = outcome.failure.message if outcome.failure else str(outcome.status)
    failed, is_result = outcome.status is OutcomeStatus.FAILED, isinstance(result, RolloutResult)
    completed = is_result and result.status == "COMPLETED"
    if failed and outcome.failure is not None and outcome.failure.boundary == "grader":
        at = (outcome.failure.file, outcome.failure.line) if outcome.failure.file else None
        yield "GRADER_FAILED", text, at
    elif failed and isinstance(result, RunOutcome):
        yield "NO_SAMPLE" if text.startswith("the workflow has no sample") else "BAD_RESULT", text, None
    elif failed and trial.returned and not is_result:
        yield "RESULT_NOT_RETURNED", text, None
    elif failed and completed and result.reward is not None and number_of(result.reward) is None:
        yield _reward_code(result.reward), text, None
    elif outcome.status is OutcomeStatus.DEADLINE_EXCEEDED:
        yield "MAX_TURNS_IGNORED" if "max_turns" in text else "RUN_TIMED_OUT", text, _place(trial.error)
    elif outcome.status is not OutcomeStatus.COMPLETED:
        yield _raised(trial, text, failed=failed)
    if outcome.status is OutcomeStatus.COMPLETED and not trial.chats:
        yield "NO_CHAT", "run ended without a chat", None
    if completed:
        for unanswered in _unanswered(result.final_messages):
            yield "TOOL_CALL_UNANSWERED", unanswered, None


def _reward_code(reward: object) -> str:
    return "NON_FINITE_REWARD" if type(reward) in (int, float) else "BAD_REWARD"


def _raised(trial: Trial, text: str, *, failed: bool) -> Row:
    error = trial.error
    if error is None or not failed:
        return "RUN_FAILED", text, None
    if isinstance(error, BadRewardError):
        return _reward_code(error.reward), describe(error), None
    of_tool = next((run for run in trial.runs if run.error is error), None)
    if of_tool is not None:
        name = f"the tool {of_tool.name}" if of_tool.name else "a tool"
        return "TOOL_ENDED_RUN", f"run ended with the exception of {name}: {_short(one_line(error))}", _place(error)
    codes = {
        "MESSAGE_IS_A_DICT": isinstance(error, AttributeError) and isinstance(error.obj, dict),
        "TOOL_NOT_ASYNC": isinstance(error, ToolRunnerNotAsyncError),
        "RUN_NOT_ASYNC": isinstance(error, RunNotAsyncError),
        "NOT_AWAITED": _is_about_a_coroutine(error),
        "AWAIT_IN_SYNC_RUN": isinstance(error, TypeError) and "can't be used in 'await' expression" in str(error),
    }
    code = next((code for code, holds in codes.items() if holds), "RUN_FAILED")
    answered = {run.call_id for run in trial.runs}
    newest = [name for key, (name, _) in trial.called.items() if key.partition("/")[2] not in answered]
    after = f", after a reply that calls {', '.join(newest)}" if newest else ""
    return code, f"run raised {one_line(error)}{after}", _place(error)


def _is_about_a_coroutine(error: BaseException) -> bool:
    """Return whether the agent used the coroutine of a call that it did not await."""
    if isinstance(error, AttributeError):
        return inspect.iscoroutine(error.obj)
    return isinstance(error, TypeError | ValueError) and "coroutine" in str(error)


def _chats(trial: Trial) -> Iterator[Row]:
    """Yield the findings about the chats."""
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
        text = (
            "does not continue an earlier chat of its sample: its history is cut or changed, and begins a new segment"
        )
        yield "HISTORY_REWRITTEN", f"{rewritten[0]} {text}{others}", None
    for name in unknown:
        near = difflib.get_close_matches(name, _PARAMETERS, 1, 0.7)
        meant = f"; is {near[0]} meant?" if near else ""
        yield "UNKNOWN_PARAMETER", f"ctx.chat got {name}, which is not a known sampling parameter{meant}", None


def _tools(trial: Trial) -> Iterator[Row]:
    """Yield the findings about the tools."""
    reported: list[BaseException] = []
    failed_calls: set[str] = set()
    for run in trial.runs:
        if run.error is not None and any(error is run.error for error in reported):
            continue
        if run.error is not None:
            reported.append(run.error)
        if run.error is not None or run.error_text:
            failed_calls.add(run.call_id)
            yield _failed(run, *_call(trial, run))
    for call_id, content in _answers(trial):
        repeats = any(str(error) and str(error) in content for error in reported)
        if call_id not in failed_calls and _ERROR.match(content) and not repeats:
            name = next((name for key, (name, _) in trial.called.items() if key.endswith(f"/{call_id}")), "a tool")
            yield "TOOL_ANSWERED_ERROR", f"the tool {name} answered what looks like an error: {content!r}", None
    called = {name for name, _ in trial.called.values()}
    never = [name for name in trial.offered if name not in called]
    if never and trial.outcome is not None and trial.outcome.status == "COMPLETED":
        what = "tools were" if len(never) > 1 else "tool was"
        asked = f"run ended after {counted(trial.outcome.metrics.num_llm_calls, 'chat')}"
        yield "TOOLS_NEVER_CALLED", f"{len(never)} {what} never called: {', '.join(never)}; {asked}", None


def _call(trial: Trial, run: ToolRun) -> tuple[str, str]:
    """Return the name and the arguments of a call, as far as they are known."""
    found = next((call for key, call in trial.called.items() if key.endswith(f"/{run.call_id}")), None)
    names = {name for name, _ in trial.called.values()}
    only = next(iter(trial.called.values())) if len(names) == 1 else ("", "")
    return found or (run.name, "") if found or run.name else only


def _failed(run: ToolRun, name: str, arguments: str) -> Row:
    tool = f"the tool {name}" if name else "a tool"
    given = f", called with {_short(arguments)}" if arguments else ""
    error, text = run.error, run.error_text
    if error is None:
        unknown = _UNKNOWN.search(text) and _A_TOOL.search(text)
        code = "TOOL_UNKNOWN" if unknown else "TOOL_ANSWERED_ERROR"
        return code, f"{tool} answered with an error: {_short(text)!r}{given}", None
    if _is_unknown_tool(error, name):
        text = f"the agent does not know {tool}, which the model is offered: it raised {_short(one_line(error))}"
        return "TOOL_UNKNOWN", f"{text}{given}", _place(error)
    codes = {
        "TOOL_ARGUMENTS_DIFFER": isinstance(error, TypeError) and re.search(r"\bargument", str(error)) is not None,
        "TOOL_TIMED_OUT": isinstance(error, TimeoutError),
        "TOOL_FAILED": isinstance(error, ToolExecutionError | OSError),
        "TOOL_REFUSED": isinstance(error, ValueError),
    }
    code = next((code for code, holds in codes.items() if holds), "TOOL_RAISED")
    return code, f"{tool} raised {_short(one_line(error))}{given}", _place(error)


def _is_unknown_tool(error: BaseException, name: str) -> bool:
    """Return whether an exception means that there is no tool of that name."""
    if isinstance(error, KeyError):
        return bool(name) and error.args == (name,)
    if isinstance(error, AttributeError):
        return bool(name) and error.name == name
    text, tool = describe(error), re.escape(name)
    before = rf"\b(no|no such|unknown|unsupported|undefined|invalid)\W+(tool|function)\W.{{0,9}}\b{tool}\b"
    after = rf"\b(tool|function)\W+{tool}\W.{{0,5}}\b(unknown|unsupported|undefined|not found|does not exist)\b"
    return bool(name) and (text == name or re.search(f"{before}|{after}", text, re.IGNORECASE) is not None)


def _answers(trial: Trial) -> Iterator[tuple[str, str]]:
    """Yield the tool messages that have text."""
    outcome = trial.outcome
    for sample in outcome.samples.values() if outcome else ():
        for message in sample.messages:
            if message.get("role") == "tool" and isinstance(message.get("content"), str):
                yield str(message.get("tool_call_id")), _short(message["content"])


def _blocks(trial: Trial) -> Iterator[Row]:
    """Yield the findings about a blocked event loop: the longest period at each place."""
    longest: dict[tuple[str, str], float] = {}
    for block in trial.blocks:
        key = block.where, block.tool
        longest[key] = max(block.seconds, longest.get(key, 0.0))
    for (where, tool), seconds in longest.items():
        who = f"the tool {tool} blocked the event loop" if tool else "the event loop was blocked"
        text = trial.stuck if trial.stuck and not tool else f"{who} for {seconds:.2f} s"
        if trial.stuck and tool:
            text = f"the tool {tool} still blocks the event loop after {seconds:g} s"
        found = re.fullmatch(r"(.*):(\d+) in .*", where, re.DOTALL)
        if found:
            code = "BLOCKING_CALL" if trial.stuck or seconds >= LONG_BLOCK else "BRIEF_BLOCK"
            yield code, f"{text} at {where}", (found[1], int(found[2]))
        elif trial.stuck:
            yield "BLOCKING_CALL", text, None


def _unanswered(messages: Any) -> Iterator[str]:
    """Yield the tool calls of a conversation that have no tool message."""
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
