"""Runs cases, several at a time and each with a time limit, and judges them."""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from osmosis_grpc.supervise import OnFailure, child, job
from osmosis_grpc.testing.conformance.calls import Trace
from osmosis_grpc.testing.conformance.cases import Case
from osmosis_grpc.testing.conformance.links import Failed, OutOfTime
from osmosis_grpc.testing.conformance.protobuf_data import CaseError
from osmosis_grpc.testing.conformance.report import Result, Skipped, Unusable, Verdict

log = logging.getLogger(__name__)
RUN = job("testing.conformance.case", OnFailure.RAISE)
Play = Callable[[Case, str, str, Trace], Awaitable[None]]
"""Plays a case in a mode: (case, mode, prefix of its rollout ids, trace). Raises Failed, Skipped or CaseError."""


async def run_cases(
    chosen: Sequence[tuple[Case, str]],
    play: Play,
    *,
    jobs: int,
    known: Mapping[str, str],
    on_result: Callable[[Result], None],
    in_turn: Sequence[str],
) -> list[Result]:
    """Run (case, mode) pairs and return their results in order.

    At most `jobs` cases run at a time. Cases in the modes `in_turn` run one after the other, because a server that
    dials has only one stream. Cases that must be alone run at the end.

    Raises CaseError if a case is wrong, and Unusable if the side under test cannot be tested.
    """
    run = secrets.token_hex(4)
    slots = asyncio.Semaphore(jobs)
    results: dict[int, Result] = {}

    async def one(index: int) -> None:
        case, mode = chosen[index]
        async with slots:
            result = await _result(case, mode, play, f"{case.name}-{mode}-{run}", known)
        results[index] = result
        on_result(result)

    async def several(indexes: Iterable[int]) -> None:
        for index in indexes:
            await one(index)

    rest = [index for index, (case, _) in enumerate(chosen) if not case.alone]
    free = [index for index in rest if chosen[index][1] not in in_turn]
    free.sort(key=lambda index: -chosen[index][0].limit)  # begin with the cases that may take long
    tasks = [child(RUN, one(index)) for index in free]
    tasks.append(child(RUN, several(index for index in rest if chosen[index][1] in in_turn)))
    try:
        await asyncio.gather(*tasks)
        await several(index for index, (case, _) in enumerate(chosen) if case.alone)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # each case stops what it has started
    return [results[index] for index in sorted(results)]


async def _result(case: Case, mode: str, play: Play, prefix: str, known: Mapping[str, str]) -> Result:
    began, trace = time.monotonic(), Trace()
    verdict, reason, out_of_time = Verdict.PASSED, "", False
    try:
        async with asyncio.timeout(case.limit):
            await play(case, mode, prefix, trace)
    except Skipped as error:
        verdict, reason = Verdict.SKIPPED, str(error)
    except Failed as error:
        verdict, reason, out_of_time = Verdict.FAILED, str(error), isinstance(error, OutOfTime)
    except TimeoutError:
        verdict, out_of_time = Verdict.FAILED, True
        reason = f"the case did not end within its limit of {case.limit:g} s"
        reason += f"; it was at {trace.step}" if trace.step else ""
    except Unusable:
        raise
    except CaseError as error:
        raise CaseError(f"{case.file}: {case.name}: {error}") from None
    except Exception as error:
        verdict, reason = Verdict.FAILED, f"the suite itself failed: {type(error).__name__}: {error}"
        log.debug("case %s", case.name, exc_info=True)
    name = f"{case.name}@{mode}"
    listed = known.get(name) if name in known else known.get(case.name)
    if listed is not None and verdict is Verdict.FAILED:
        verdict, reason = Verdict.KNOWN, f"{listed}\n{reason}".strip()
    elif listed is not None and verdict is Verdict.PASSED:
        verdict, reason = Verdict.UNEXPECTED, f"take {name} out of the file of known failures"
    return Result(case, mode, verdict, time.monotonic() - began, reason, trace.shown(), out_of_time)


def known_failures(text: str) -> dict[str, str]:
    """Parse a file of known failures. Each line is CASE or CASE@MODE, followed by a # and the reason.

    Raises ValueError for a malformed line.
    """
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, _, reason = line.partition("#")
        if not name.strip():
            continue
        if not re.fullmatch(r"[a-z0-9-]+(@(callback|attach|accept|call))?", name.strip()):
            raise ValueError(f"line {number}: {name.strip()} is not CASE or CASE@MODE")
        if not reason.strip():
            raise ValueError(f"line {number}: {name.strip()} has no reason; write: {name.strip()}  # REASON")
        found[name.strip()] = reason.strip()
    return found


def chosen_cases(cases: Sequence[Case], names: Sequence[str], modes: Sequence[str]) -> list[tuple[Case, str]]:
    """Return the cases with their modes. Each name is CASE or CASE@MODE; no names mean all cases. Raises ValueError."""
    known = {case.name for case in cases} | {f"{case.name}@{mode}" for case in cases for mode in case.over}
    for name in names:
        if name not in known:
            raise ValueError(f"there is no case {name}; --list shows them")
    return [
        (case, mode)
        for case in cases
        for mode in case.over
        if mode in modes and (not names or case.name in names or f"{case.name}@{mode}" in names)
    ]
