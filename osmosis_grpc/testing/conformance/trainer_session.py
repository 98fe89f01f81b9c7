"""Runs the suite against a trainer: a command that is started for each case."""

import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence

from osmosis_grpc.testing.conformance.cases import Case
from osmosis_grpc.testing.conformance.results import Result, Skipped, Unusable
from osmosis_grpc.testing.conformance.runner import run_cases
from osmosis_grpc.testing.conformance.trace import Trace
from osmosis_grpc.testing.conformance.trainer_kinds import KINDS
from osmosis_grpc.testing.conformance.trainer_run import TrainerRun


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

    async def play(case: Case, mode: str, prefix: str, trace: Trace) -> None:
        if mode in lacking:
            raise Skipped(f"the trainer lacks the mode {mode}")
        run = TrainerRun(command, case, mode, prefix, trace)
        try:
            await KINDS[case.kind].run(run)
        except Skipped:
            if not run.case.body.get("start"):  # no option of its own, so the mode is what the trainer lacks
                lacking.add(mode)
            raise
        finally:
            await run.close()

    return await run_cases(chosen, play, jobs=jobs, known=known, on_result=on_result, in_turn=())
