"""Runs the suite against a trainer: a command that is started for each case."""

import asyncio
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence

from osmosis_grpc.testing.conformance.cases import Case
from osmosis_grpc.testing.conformance.results import Result, Skipped, Unusable
from osmosis_grpc.testing.conformance.runner import run_cases
from osmosis_grpc.testing.conformance.trace import Trace
from osmosis_grpc.testing.conformance.trainer_kinds import KINDS
from osmosis_grpc.testing.conformance.trainer_run import EndedAtOnce, TrainerRun


class Starts:
    """Whether the trainer starts: the first cases find out together."""

    def __init__(self) -> None:
        self.well = False
        """Whether a process of the trainer has done anything."""
        self._undecided = 0
        self._news = asyncio.Condition()

    def begin(self) -> None:
        """Begin a case."""
        self._undecided += 1

    async def end(self, *, well: bool) -> None:
        """End a case. If its process did nothing, wait until another one did, or until no other case runs."""
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
            if not run.case.body.get("start"):  # no option of its own, so the mode is what the trainer lacks
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
