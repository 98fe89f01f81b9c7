"""Runs the suite against a trainer, which is a command that is started for each case."""

import asyncio
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from osmosis_grpc.testing.conformance.calls import Trace
from osmosis_grpc.testing.conformance.cases import Case, Kind, check_pairs, pairs, put
from osmosis_grpc.testing.conformance.link_steps import check_steps, run_steps
from osmosis_grpc.testing.conformance.links import Failed
from osmosis_grpc.testing.conformance.report import Result, Skipped, Unusable
from osmosis_grpc.testing.conformance.runner import run_cases
from osmosis_grpc.testing.conformance.trainer_run import START, EndedAtOnce, TrainerRun
from osmosis_grpc.testing.conformance.trainer_steps import VERBS, frames


async def rollout(run: TrainerRun) -> None:
    """Send the chats of a rollout one after the other, report its outcome, and compare what the trainer prints."""
    body = run.case.body
    chats = [int(chat.get("number", 1)) for chat in body["chats"]]
    steps: list[dict[str, Any]] = [{"accept": {}}]
    for chat in body["chats"]:
        names = {name: chat[name] for name in ("number", "sample") if name in chat}
        steps += [{"ask": chat}, {"answer": names}]
    steps.append({"report": {"chats": chats, **body.get("outcome", {})}})
    steps.append({"recorded": {"chats": chats, **body.get("prints", {})}})
    await run.start(body.get("start", {}))
    await VERBS["open"](run, {}, {})
    await run_steps(run, steps, VERBS)


async def equality(run: TrainerRun) -> None:
    """Send a chat with each value of a pair. Equal values get the same reply, and different values are refused."""
    path = run.case.body["field"]
    await run.start({})
    await VERBS["open"](run, {}, {})
    await run_steps(run, [{"accept": {}}], VERBS)
    for number, (one, other, equal) in enumerate(pairs(run.case.body), 1):
        key = run.rollout_id, "main", number
        run.histories[key], run.parents[key] = [START], 0
        for value, expected in ((one, {}), (other, {} if equal else {"status": "ALREADY_EXISTS"})):
            chat: dict[str, Any] = {"full": {"messages": [{"role": "user", "text": "start"}]}}
            put(chat, path, value)
            if not expected and "messages[0]" in path and isinstance(value, Mapping):
                run.histories[key] = [dict(value)]
            try:
                steps = [{"ask": {"number": number, **chat}}, {"answer": {"number": number, **expected}}]
                await run_steps(run, steps, VERBS)
            except Failed as error:
                words = "equal" if equal else "different"
                raise type(error)(f"the {words} values {one!r} and {other!r}: {error}") from None


KINDS: Mapping[str, Kind] = {
    "frames": Kind(frozenset({"steps", "start"}), ("steps",), frames, lambda body: check_steps(body["steps"], VERBS)),
    "rollout": Kind(frozenset({"start", "chats", "outcome", "prints"}), ("chats",), rollout),
    "equality": Kind(frozenset({"field", "vector", "equal", "different"}), (), equality, check_pairs),
}
"""The kinds by name."""


class Starts:
    """Finds out, with the first cases together, whether the trainer starts at all."""

    def __init__(self) -> None:
        self.well = False
        """Whether any process of the trainer has done anything."""
        self._undecided = 0
        self._news = asyncio.Condition()

    def begin(self) -> None:
        """Begin a case."""
        self._undecided += 1

    async def end(self, *, well: bool) -> None:
        """End a case. If its process did nothing, wait until another process did something, or no other case runs."""
        async with self._news:
            self._undecided -= 1
            self.well = self.well or well
            self._news.notify_all()
            if not well:
                await self._news.wait_for(lambda: self.well or not self._undecided)


async def test_trainer(
    command: str,
    chosen: Sequence[tuple[Case, str]],
    *,
    jobs: int,
    known: Mapping[str, str],
    on_result: Callable[[Result], None],
) -> list[Result]:
    """Run cases against a trainer and return their results. Raises Unusable if it cannot be started."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise Unusable(f"the trainer {command!r} cannot be started: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise Unusable(f"the trainer {command!r} cannot be started: there is no program {words[0] if words else ''!r}")

    lacking: set[str] = set()
    starts = Starts()

    async def play(case: Case, mode: str, prefix: str, trace: Trace) -> None:
        if mode in lacking:
            raise Skipped(f"the trainer lacks the mode {mode}")
        run = TrainerRun(command, case, mode, prefix, trace)
        starts.begin()
        well = True
        try:
            await KINDS[case.kind].run(run)
        except Skipped:
            if not run.case.body.get("start"):  # the case has no options, so the trainer lacks the mode
                lacking.add(mode)
            raise
        except EndedAtOnce as error:
            well = False
            await starts.end(well=False)
            if not starts.well:
                code = None if run.process is None else run.process.exit_code
                why = f"it ended at once with exit code {code}; {run.stderr()}" if code is not None else str(error)
                raise Unusable(f"the trainer {command!r} does not start: {why.rstrip()}") from None
            raise
        finally:
            if well:
                await starts.end(well=True)
            await run.close()

    return await run_cases(chosen, play, jobs=jobs, known=known, on_result=on_result, in_turn=())
