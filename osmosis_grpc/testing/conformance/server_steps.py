"""The steps of a case against an agent server. To add a step, add a function and a row of the table."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from osmosis_grpc.protocol.wire.methods import METHODS
from osmosis_grpc.testing.conformance.link_steps import GENERIC, method_of, run_steps
from osmosis_grpc.testing.conformance.links import Failed
from osmosis_grpc.testing.conformance.patterns import differences
from osmosis_grpc.testing.conformance.protobuf_data import CaseError, check_fields, code_number
from osmosis_grpc.testing.conformance.report import Skipped
from osmosis_grpc.testing.conformance.run import Step
from osmosis_grpc.testing.conformance.server_run import ServerRun

MOST_INITS = 3000
"""`flood` starts at most this many rollouts."""
POLL = 0.05
"""How many seconds `eventually` waits between two checks."""


async def frames(run: ServerRun) -> None:
    """Run a case of the kind `frames`. Open the first link, unless the first step opens it."""
    steps = list(run.case.body["steps"])
    if "open" not in steps[0]:
        await run.open({})
        if run.mode != "callback":
            await run.link().take({"hello": {}}, run.saved)
    await run_steps(run, steps, VERBS)


async def _open(run: ServerRun, value: Any, step: Step) -> None:
    """Open a link. `hello: false` sends no hello; `expect: false` does not wait for the server's hello."""
    given = dict(value or {})
    hello = given.pop("hello", True)
    expected = given.pop("expect", {})
    link = await run.open(given if hello else None, step.get("link", "main"), step.get("token", "first"))
    if hello and expected is not False and run.mode != "callback":
        await link.take({"hello": expected}, run.saved, step.get("wait"))


async def _start(run: ServerRun, value: Any, step: Step) -> None:
    """Start a rollout. `reply` is the expected answer; `reply: false` does not wait for it."""
    given = dict(value or {})
    expected = given.pop("reply", {"response": {"created": True}})
    request = run.init(given)
    run.rollout_id = request["rollout_id"]
    link = run.link_of(step)
    await link.send([{"init": request}])
    if expected is not False:
        await link.take({"init_reply": {"rollout_id": run.rollout_id, **expected}}, run.saved, step.get("wait"))


async def _chat(run: ServerRun, value: Any, step: Step) -> None:
    """Expect a chat of the newest rollout. `as: NAME` names it for a later `reply` with `to: NAME`."""
    fields = {"rollout_id": run.rollout_id} | (value or {})
    if fields["rollout_id"] is None:
        del fields["rollout_id"]
    run.chat = await run.link_of(step).take({"chat": fields}, run.saved, step.get("wait"))
    run.answered = False
    if "as" in step:
        run.saved[step["as"]] = run.chat


async def _reply(run: ServerRun, value: Any, step: Step) -> None:
    """Answer the newest chat, or the one that `to` names."""
    chat = run.saved[step["to"]] if "to" in step else run.chat
    if chat is None:
        raise CaseError("reply: no chat has come")
    await run.reply(run.link_of(step), chat, value or {})


async def _outcome(run: ServerRun, value: Any, step: Step) -> None:
    """Expect an outcome of the newest rollout; `receipt` answers it."""
    fields = {"rollout_id": run.rollout_id} | (value or {})
    complete = await run.link_of(step).take({"complete": {"outcome": fields}}, run.saved, step.get("wait"))
    run.outcome = complete.outcome


async def _receipt(run: ServerRun, value: Any, step: Step) -> None:
    await run.receipt(run.link_of(step), run.outcome, value or "RECEIPT_RECORDED")


async def _finish(run: ServerRun, value: Any, step: Step) -> None:
    """Answer all chats of the newest rollout until its outcome comes. Answer the outcome with RECORDED."""
    link, names = run.link_of(step), {"rollout_id": run.rollout_id}

    def found(kind: str) -> bool:
        return link.find(kind, names) is not None

    if not run.answered and run.chat.rollout_id == run.rollout_id:
        await run.reply(link, run.chat, {})
    for _ in range(1000):
        what = f"a chat or the outcome of {run.rollout_id}"
        await link.until(
            lambda: found("chat") or found("complete") or link.inbox.over is not None, what, step.get("wait")
        )
        if not found("chat"):
            break
        run.chat = await link.take({"chat": names}, run.saved)
        await run.reply(link, run.chat, {})
    await _outcome(run, value, step)
    await run.receipt(link, run.outcome)


async def _segments(run: ServerRun, value: Any, _step: Step) -> None:
    run.expect("segments", value, run.segments(run.outcome))


async def _count(run: ServerRun, value: Any, step: Step) -> None:
    """Expect this number of frames that no step has taken, such as {chat: 2}."""
    link = run.link_of(step)
    await run.settle(link)
    for kind, count in value.items():
        fresh = [each for each in link.fresh(kind) if run.owns(each)]
        if len(fresh) != count:
            raise Failed(f"expected {count} open frames of the kind {kind}, got {len(fresh)}")


async def _call(run: ServerRun, value: Any, step: Step) -> None:
    """Make a call: {METHOD: request, expect: {...}}. Without `expect`, expect the code OK."""
    await call(run, value, step.get("token", "first"))


async def _eventually(run: ServerRun, value: Any, step: Step) -> None:
    """Repeat a call until its answer is as expected."""
    limit = step.get("wait", 8)
    try:
        async with asyncio.timeout(limit):
            while True:
                before = len(run.trace.lines)
                try:
                    return await call(run, value, step.get("token", "first"))
                except Failed as error:
                    last = error
                await asyncio.sleep(POLL)
                del run.trace.lines[before:]
    except TimeoutError:
        raise Failed(f"not within {limit:g} s: {last}") from None


async def call(run: ServerRun, value: Mapping[str, Any], token: str) -> None:
    """Make a call and compare its answer. Raises Failed."""
    if not isinstance(value, Mapping):
        raise CaseError("a call is an object with a method and its request")
    given = dict(value)
    expected = given.pop("expect", {"code": "OK"})
    timeout = given.pop("within", 10)
    token = given.pop("token", token)
    method, request = method_of(given)
    run.drained = run.drained or method == "Drain"
    if method == "Init":
        request = run.init(request or {})
        run.rollout_id = run.rollout_id or request["rollout_id"]
        request.setdefault("callback", {"target": run.server.listener.address})
        request = {key: each for key, each in request.items() if each is not None}
    whole: dict[str, Any] = {"code": expected} if isinstance(expected, str) else {"code": "OK"} | expected
    if isinstance(whole["code"], str) and whole["code"] != "OPEN":
        code_number(whole["code"])
    answer = await run.calls(token).data(method, request or {}, timeout)
    if isinstance(whole.get("response"), Mapping):
        check_fields(METHODS[method].response.DESCRIPTOR, whole["response"])
    run.expect(method, whole, answer)


async def _messages(run: ServerRun, value: Any, step: Step) -> None:
    """Compare the messages of the stream so far that have several frames, by their number of frames and bytes."""
    link = run.link_of(step)
    await run.settle(link)
    for number, (frames, size) in enumerate(link.inbox.messages):  # type: ignore[attr-defined]
        if frames > 1:
            run.expect(f"message {number}", value, {"frames": frames, "bytes": size})


async def _flood(run: ServerRun, value: Any, step: Step) -> None:
    """Start waiting rollouts: as many as the largest window of the stream allows, and `value` more."""
    link = run.link_of(step)
    await run.settle(link)
    windows = [
        getattr(frame, kind).max_open_rollouts
        for kind in ("hello", "window")
        for frame in link.inbox.frames
        if frame.WhichOneof("frame") == kind
    ]
    count = max(windows) + value
    if count > MOST_INITS:
        raise Skipped(f"the window has {count} rollouts; this case starts at most {MOST_INITS}")
    run.rollout_id = run.prefix
    frames = [{"init": run.init({"id": f"flood-{number}", "script": [{"sleep": 60}]})} for number in range(count)]
    for first in range(0, count, 1000):
        await link.send(frames[first : first + 1000])


async def _equal(run: ServerRun, value: Any, _step: Step) -> None:
    first, *others = value
    for other in others:
        if any(differences(first, other, run.saved)):
            raise Failed(f"expected equal values, got {first!r} and {other!r}")


VERBS: dict[str, Callable[[ServerRun, Any, Step], Awaitable[None]]] = {
    **GENERIC,
    "open": _open,
    "start": _start,
    "chat": _chat,
    "reply": _reply,
    "outcome": _outcome,
    "receipt": _receipt,
    "finish": _finish,
    "segments": _segments,
    "count": _count,
    "messages": _messages,
    "flood": _flood,
    "call": _call,
    "eventually": _eventually,
    "equal": _equal,
}
"""The verbs of a step."""
