"""The steps that are the same for both sides, and what all steps share."""

import asyncio
from collections.abc import Container, Mapping
from typing import Any

from osmosis_grpc.testing.conformance.links import Failed, Link
from osmosis_grpc.testing.conformance.protobuf_data import CaseError

Step = Mapping[str, Any]
MODIFIERS = frozenset({"link", "wait", "token", "as", "to", "for", "only"})
"""Keys that a step may have besides its verb."""


def verb_of(step: Step, verbs: Container[str], number: int) -> str:
    """Return the verb of a step. Raises CaseError for a step with none or several."""
    found = [str(key) for key in step if key not in MODIFIERS]
    if len(found) != 1 or found[0] not in verbs:
        raise CaseError(f"step {number} needs one verb, and has {', '.join(found) or 'none'}")
    return found[0]


def link_of(run: Any, step: Step) -> Link:
    found: Link = run.link(step.get("link", "main"))
    return found


async def send_bytes(run: Any, value: Any, step: Step) -> None:
    await link_of(run, step).write_bytes(bytes.fromhex(str(value).replace(" ", "")))


async def expect(run: Any, value: Any, step: Step) -> None:
    await link_of(run, step).take(value, run.saved, step.get("wait"))


async def end(run: Any, value: Any, step: Step) -> None:
    """Expect the end of the stream with this status; [A, B] permits several."""
    expected = {"$in": value} if isinstance(value, list) else value if isinstance(value, Mapping) else {"code": value}
    got = await link_of(run, step).ended(step.get("wait"))
    run.expect("end", expected, got["code"] if isinstance(value, list) else got)


async def half_close(run: Any, _value: Any, step: Step) -> None:
    await link_of(run, step).half_close()


async def cut(run: Any, _value: Any, step: Step) -> None:
    await link_of(run, step).cut()


async def sleep(_run: Any, value: Any, _step: Step) -> None:
    await asyncio.sleep(value)


async def save(run: Any, value: Any, _step: Step) -> None:
    """Set variables of later steps."""
    run.saved |= value


async def stays(run: Any, value: Any, step: Step) -> None:
    """Expect that the stream stays open for this number of seconds."""
    link = link_of(run, step)
    await asyncio.sleep(value)
    if link.inbox.over is not None:
        raise Failed(f"the stream ended: {link.end_text()}")


GENERIC = {
    "bytes": send_bytes,
    "expect": expect,
    "end": end,
    "stays": stays,
    "half_close": half_close,
    "cut": cut,
    "sleep": sleep,
    "save": save,
}
"""The verbs of both sides."""
