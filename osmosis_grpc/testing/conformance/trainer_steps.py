"""The steps of a case against a trainer. To add a step, add a function and a row of the table."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from osmosis_grpc.testing.conformance.link_steps import GENERIC, method_of, run_steps
from osmosis_grpc.testing.conformance.links import Failed, OutOfTime
from osmosis_grpc.testing.conformance.protobuf_data import CaseError, to_data
from osmosis_grpc.testing.conformance.report import Skipped
from osmosis_grpc.testing.conformance.run import Step
from osmosis_grpc.testing.conformance.trainer_links import CallbackLink
from osmosis_grpc.testing.conformance.trainer_run import START, TOOLS, TrainerRun

START_LIMIT = 20.0
"""A trainer must start and send its first Init within this many seconds."""
PRINT_WAIT = 5.0
"""A trainer must print an expected line within this many seconds."""
DEFAULT_WINDOW = 1024
"""The window of a trainer if its hello has no max_open_chats."""
MOST_CHATS = 4096
"""A case sends at most this many chats at once."""


async def frames(run: TrainerRun) -> None:
    """Run a case of the kind `frames`. Start the trainer and open its link before the first step."""
    steps = list(run.case.body["steps"])
    await run.start(run.case.body.get("start", {}))
    if "open" not in steps[0]:
        await _open(run, {}, {})
    await run_steps(run, steps, VERBS)


async def _open(run: TrainerRun, value: Any, step: Step) -> None:
    """Open a link and exchange hellos. `hello: false` sends no hello; `expect` is the expected hello of the trainer."""
    given = dict(value or {})
    hello, expected = given.pop("hello", True), given.pop("expect", {})
    link = await run.open(given if hello else None, step.get("link", "main"))
    if expected is not False and run.mode != "callback":
        await link.take({"hello": expected}, run.saved, step.get("wait"))


async def _accept(run: TrainerRun, value: Any, step: Step) -> None:
    """Expect the Init of the current rollout, and answer it. By default, accept it; `reply: false` gives no answer."""
    given = dict(value or {})
    reply, expected = given.pop("reply", {}), given.pop("expect", {})
    run.rollout_id = given.get("rollout_id", run.rollout_id)
    link = run.link_of(step)
    init = {"init": {"rollout_id": run.rollout_id, **expected}}
    request = await link.take(init, run.saved, step.get("wait", START_LIMIT))
    run.attempt = request.attempt or 1
    if reply is not False:
        names = {"rollout_id": run.rollout_id, "attempt": run.attempt}
        result = {"response": names | {"tools": TOOLS, "created": True}} if "status" not in reply else {}
        await link.send([{"init_reply": names | result | reply}])


async def _ask(run: TrainerRun, value: Any, step: Step) -> None:
    """Send a chat of the current rollout.

    `number` is the chat's number, and `text` its new user message. `after` is the chat that it continues. The history
    has the usual form of the mode, or the form `form`. `answer` is the expected answer of the trainer. Other keys are
    fields of ChatRequest.
    """
    given = dict(value or {})
    number, sample = given.pop("number", 1), given.pop("sample", "main")
    parent, text = given.pop("after", number - 1), given.pop("text", None)
    form = given.pop("form", "full" if run.mode == "callback" else "delta")
    key = run.rollout_id, sample, number
    chat: dict[str, Any] = dict(zip(("rollout_id", "sample", "chat_number"), key, strict=True))
    chat["attempt"] = run.attempt
    if "full" not in given and "delta" not in given:
        known = run.history(sample, parent) if parent else []
        new = ([] if parent else [START]) + ([{"role": "user", "text": text}] if text is not None else [])
        run.histories[key], run.parents[key] = known + new, parent
        if form == "delta" and parent:
            chat["delta"] = {"parent_chat": parent, "messages": new}
        else:
            chat["full"] = {"messages": known + new, "parent_chat": parent, "prefix_messages": len(known)}
    if run.mode == "callback":
        chat["tools"] = {"tools": TOOLS}
    await run.link_of(step).send([{"chat": chat | given}])


async def _answer(run: TrainerRun, value: Any, step: Step) -> None:
    """Expect the answer to a chat. Without `status`, it must follow the rule of the policy."""
    given = dict(value or {})
    number, sample = given.pop("number", 1), given.pop("sample", "main")
    names = {"rollout_id": run.rollout_id, "sample": sample, "chat_number": number}
    names |= {key: given.pop(key) for key in ("rollout_id", "attempt") if key in given}
    link = run.link_of(step)
    if "status" in given:
        await link.take({"chat_reply": names | {"status": given["status"]}}, run.saved, step.get("wait"))
        return
    reply = await link.take({"chat_reply": names}, run.saved, step.get("wait"))
    if reply.WhichOneof("result") != "response":
        raise Failed(f"expected a reply to chat {number}, got the status {json.dumps(to_data(reply.status))}")
    got, (prompt, ids) = reply.response, run.ids(sample, number)
    parent = run.parents[run.rollout_id, sample, number]
    before = [id_ for part in run.ids(sample, parent) for id_ in part] if parent else []
    if got.prompt_prefix > len(before):
        raise Failed(f"prompt_prefix is {got.prompt_prefix}, and chat {parent} has {len(before)} tokens")
    whole = [*before[: got.prompt_prefix], *got.prompt.ids]
    if whole != prompt:
        left_out = f"the first {got.prompt_prefix} ids of chat {parent} (prompt_prefix)"
        got_as = f"{whole}: {left_out}, then {list(got.prompt.ids)} (prompt)"
        raise Failed(f"the prompt of chat {number} has the ids {prompt}; got {got_as}")
    run.expect(
        "reply",
        {
            "text": run.history(sample, number)[-1]["text"],
            "role": "assistant",
            "tokens": ids,
            "logprobs": [-0.5, -0.25],
        },
        {
            "text": got.message.text,
            "role": got.message.role,
            "tokens": list(got.tokens.ids),
            "logprobs": list(got.tokens.logprobs),
        },
    )
    if given:
        run.expect("reply", given, to_data(got))


async def _report(run: TrainerRun, value: Any, step: Step) -> None:
    """Report an outcome. `chats` are the chats of one segment of `main`; other keys are fields of RolloutOutcome."""
    given = dict(value or {})
    chats, whole = given.pop("chats", None), given.pop("whole", run.mode == "callback")
    outcome: dict[str, Any] = {
        "rollout_id": run.rollout_id,
        "attempt": run.attempt,
        "result_id": f"result of {run.rollout_id} {run.attempt}",
        "status": "OUTCOME_STATUS_COMPLETED",
        "finish_reason": "stop",
        "metrics": {},
    }
    if chats:
        segment = run.segments("main", chats)
        sample: dict[str, Any] = {"name": "main", "trainable": True}
        if whole:
            sample |= {"messages": run.history("main", chats[-1]), "segments": [segment]}
        else:
            reference = {name: segment[name] for name in ("mask_runs", "chats")}
            sample |= {"prefix_chat": chats[-1], "segments": [reference]}
        outcome["samples"] = [sample]
    await run.link_of(step).send([{"complete": {"outcome": outcome | given}}])


async def _receipt(run: TrainerRun, value: Any, step: Step) -> None:
    """Expect the answer to an outcome: a receipt, or {status}."""
    expected = {"receipt": value or "RECEIPT_RECORDED"} if not isinstance(value, Mapping) else dict(value)
    names = {"rollout_id": expected.pop("rollout_id", run.rollout_id)}
    names |= {key: expected.pop(key) for key in ("result_id", "attempt") if key in expected}
    await run.link_of(step).take({"complete_reply": names | expected}, run.saved, step.get("wait"))


async def _recorded(run: TrainerRun, value: Any, step: Step) -> None:
    """Expect that the outcome is recorded and printed, with the tokens of these chats."""
    given = dict(value or {})
    chats = given.pop("chats", None)
    await _receipt(run, "RECEIPT_RECORDED", step)
    expected: dict[str, Any] = {"event": "outcome", "rollout_id": run.rollout_id, "attempt": run.attempt, **given}
    if chats:
        expected["samples"] = [{"name": "main", "trainable": True, "segments": [run.segments("main", chats)]}]
    try:
        await run.printed(expected, step.get("wait", PRINT_WAIT))
    except Failed as error:
        raise type(error)(f"the trainer answered RECORDED, so it has stored the outcome; {error}") from None


async def _printed(run: TrainerRun, value: Any, step: Step) -> None:
    await run.printed(value, step.get("wait", PRINT_WAIT))


async def _counted(run: TrainerRun, value: Any, step: Step) -> None:
    """Expect N printed lines with these values: {event: ..., count: N}. `for` is how many seconds to wait first."""
    expected = dict(value)
    count = expected.pop("count")
    await asyncio.sleep(step.get("for", 0.3))
    got = run.count_printed(expected)
    if got != count:
        raise Failed(f"expected {count} printed lines {json.dumps(expected)}, got {got}")


async def _finish_stream(run: TrainerRun, value: Any, step: Step) -> None:
    """End the stream with a status."""
    run.may_end = run.may_end or value == "ABORTED"
    await run.link_of(step).finish(value)  # type: ignore[attr-defined]


async def _no_stream(run: TrainerRun, value: Any, _step: Step) -> None:
    """Expect that the trainer opens no stream for `value` seconds."""
    try:
        async with asyncio.timeout(value):
            await run.server.next_stream()
    except TimeoutError:
        return
    raise Failed("the trainer opened another stream")


async def _leave(run: TrainerRun, _value: Any, _step: Step) -> None:
    assert run.process is not None
    run.may_end = True
    await run.process.leave()


async def _exit(run: TrainerRun, value: Any, step: Step) -> None:
    """Expect the end of the process with this exit code."""
    assert run.process is not None
    limit = step.get("wait", 10)
    try:
        async with asyncio.timeout(limit):
            code = await run.process.ended()
    except TimeoutError:
        raise OutOfTime(f"the trainer did not end within {limit:g} s") from None
    if code != value:
        raise Failed(f"expected the exit code {value}, got {code}; {run.stderr()}")


async def _call(run: TrainerRun, value: Any, step: Step) -> None:
    """Call the trainer's callback: {METHOD: request, expect: {...}, credential: TEXT}."""
    given = dict(value)
    expected, credential = given.pop("expect", {"code": "OK"}), given.pop("credential", None)
    link = run.link_of(step)
    if not isinstance(link, CallbackLink):
        raise CaseError("`call` needs the mode callback")
    method, request = method_of(given)
    answer = await link.calls(run.rollout_id, credential).data(method, request or {}, 10)
    run.expect(method, {"code": expected} if isinstance(expected, str) else {"code": "OK"} | expected, answer)


async def _forget(run: TrainerRun, _value: Any, _step: Step) -> None:
    """Let the suite's server forget its journal. Over callbacks, it continues as a new process without rollouts."""
    run.trace.add("->", "the server forgets its rollouts: from now on GetRollout answers NOT_FOUND")
    run.server.forget()


async def _flood(run: TrainerRun, value: Any, step: Step) -> None:
    """Send as many chats as the trainer's hello allows, and `value` more. The policy waits 30 seconds for each."""
    link = run.link_of(step)
    hello = link.inbox.frames[0].hello
    window = hello.max_open_chats if hello.HasField("max_open_chats") else DEFAULT_WINDOW
    if window > MOST_CHATS:
        raise Skipped(f"the trainer's max_open_chats is more than {MOST_CHATS}")
    messages = [START, {"role": "user", "text": "wait 30"}]
    names = {"rollout_id": run.rollout_id, "attempt": run.attempt, "sample": "main"}
    chats = [{"chat": names | {"chat_number": n + 1, "full": {"messages": messages}}} for n in range(window + value)]
    for first in range(0, len(chats), 1000):
        await link.send(chats[first : first + 1000])


async def _rollout(run: TrainerRun, value: Any, _step: Step) -> None:
    """Continue with the N-th rollout of the trainer."""
    run.rollout_id = f"{run.prefix}-{value}"


VERBS: dict[str, Callable[[TrainerRun, Any, Step], Awaitable[None]]] = {
    **GENERIC,
    "open": _open,
    "accept": _accept,
    "ask": _ask,
    "answer": _answer,
    "report": _report,
    "receipt": _receipt,
    "recorded": _recorded,
    "printed": _printed,
    "counted": _counted,
    "finish": _finish_stream,
    "no_stream": _no_stream,
    "leave": _leave,
    "exit": _exit,
    "call": _call,
    "rollout": _rollout,
    "forget": _forget,
    "flood": _flood,
}
"""The verbs of a step."""
