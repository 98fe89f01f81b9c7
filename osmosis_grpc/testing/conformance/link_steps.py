"""The steps that both sides have, and helpers for all steps."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from osmosis_grpc.testing.conformance.links import Failed
from osmosis_grpc.testing.conformance.protobuf_data import CaseError, code_number, to_data
from osmosis_grpc.testing.conformance.run import Run, Step

Verbs = Mapping[str, Callable[[Any, Any, Step], Awaitable[None]]]
"""The function of each verb. Its arguments are the run, the verb's value, and the whole step."""
MODIFIERS = frozenset({"link", "wait", "token", "as", "to", "for", "only", "named"})
"""The keys that a step may have besides its verb."""
TIMES = ("wait", "for", "stays", "sleep", "no_stream")
"""The keys with a time: a number of seconds, a duration such as 45s, or a multiple of one such as 0.7 * 45s."""
_TIME = re.compile(r"(?:([\d.]+) \* )?([\d.]+)s")


async def run_steps(run: Run, steps: Sequence[Step], verbs: Verbs) -> None:
    """Do the steps in order. Raises Failed with the name of the step, and CaseError for an invalid step."""
    for number, step in enumerate(steps, 1):
        if run.mode not in step.get("only", run.mode):
            continue
        verb = verb_of(step, verbs, number)
        what = f"step {number} ({verb}{', ' + step['named'] if 'named' in step else ''})"
        run.trace.step = f"{what}: {json.dumps(step[verb], default=str)[:200]}"
        try:
            whole = run.filled(step)
            whole |= {key: seconds(whole[key], key) for key in TIMES if key in whole}
            await run.guard(verbs[verb](run, whole[verb], whole))
        except (Failed, CaseError) as error:
            raise type(error)(f"{what}: {error}") from None


def check_steps(steps: Any, verbs: Collection[str]) -> None:
    """Check the verbs of the steps. Raises CaseError."""
    for number, step in enumerate(steps, 1):
        if not isinstance(step, Mapping):
            raise CaseError(f"step {number} is not an object with one verb")
        verb_of(step, verbs, number)


def seconds(value: Any, where: str) -> float:
    """Return a time of a step in seconds. Raises CaseError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    found = _TIME.fullmatch(str(value))
    if found is None:
        raise CaseError(f"{where}: {value!r} is not a number of seconds, a duration (45s) or a multiple (0.7 * 45s)")
    return float(found[1] or 1) * float(found[2])


def verb_of(step: Step, verbs: Collection[str], number: int) -> str:
    """Return the verb of a step. Raises CaseError if the step has no verb or several verbs."""
    found = [str(key) for key in step if key not in MODIFIERS]
    if len(found) != 1:
        raise CaseError(f"step {number} needs one verb, and has {', '.join(found) or 'none'}")
    if found[0] not in verbs:
        raise CaseError(f"step {number}: there is no verb {found[0]}; there are {', '.join(sorted(verbs))}")
    return found[0]


async def send_bytes(run: Run, value: Any, step: Step) -> None:
    await run.link_of(step).write_bytes(bytes.fromhex(str(value).replace(" ", "")))


async def expect(run: Run, value: Any, step: Step) -> None:
    await run.link_of(step).take(value, run.saved, step.get("wait"))


async def end(run: Run, value: Any, step: Step) -> None:
    """Expect the stream to end with the status `value`, or with one of a list [A, B] of statuses."""
    expected = {"$in": value} if isinstance(value, list) else value if isinstance(value, Mapping) else {"code": value}
    for code in value if isinstance(value, list) else [value]:
        if isinstance(code, str):
            code_number(code)
    got = await run.link_of(step).ended(step.get("wait"))
    run.expect("end", expected, got["code"] if isinstance(value, list) else got)


async def half_close(run: Run, _value: Any, step: Step) -> None:
    await run.link_of(step).half_close()


async def cut(run: Run, _value: Any, step: Step) -> None:
    await run.link_of(step).cut()


async def send(run: Run, value: Any, step: Step) -> None:
    """Send frames in one message. {times: N, frame: FRAME} sends FRAME N times."""
    frames: list[Any] = []
    for each in value if isinstance(value, list) else [value]:
        frames += [each["frame"]] * each["times"] if "times" in each else [each]
    await run.link_of(step).send([run.frame(frame) for frame in frames])


async def none(run: Run, value: Any, step: Step) -> None:
    """Expect no further frame of these kinds. `for` is how many seconds to wait for one."""
    link = run.link_of(step)
    await asyncio.sleep(step.get("for", run.quiet))
    await run.settle(link)
    for kind in value if isinstance(value, list) else [value]:
        if fresh := [each for each in link.fresh(kind) if run.owns(each)]:
            raise Failed(f"expected no further {kind}, got {json.dumps(to_data(fresh[0]), ensure_ascii=False)[:400]}")


async def sleep(_run: Run, value: Any, _step: Step) -> None:
    await asyncio.sleep(value)


async def save(run: Run, value: Any, _step: Step) -> None:
    """Set variables of later steps."""
    run.saved |= value


async def stays(run: Run, value: Any, step: Step) -> None:
    """Expect that the stream stays open for `value` seconds."""
    link = run.link_of(step)
    await asyncio.sleep(value)
    if link.inbox.over is not None:
        raise Failed(f"the stream ended: {link.end_text()}")


def method_of(call: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the method of a call and its request. Raises CaseError for a call with none or several."""
    if len(call) != 1:
        raise CaseError(f"a call has one method, not {', '.join(call)}")
    return next(iter(call.items()))


GENERIC = {
    "bytes": send_bytes,
    "send": send,
    "none": none,
    "expect": expect,
    "end": end,
    "stays": stays,
    "half_close": half_close,
    "cut": cut,
    "sleep": sleep,
    "save": save,
}
"""The verbs of both sides."""
