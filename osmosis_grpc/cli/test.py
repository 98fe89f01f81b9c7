"""The test command: runs an agent loop over a dataset with a model of the user's choice, in this process."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from osmosis_grpc.agent.loader import LoadError
from osmosis_grpc.cli.dataset_run import DatasetRun, Prepared, Rows, about, inputs, prepare
from osmosis_grpc.cli.interactive import Session, SteppedPolicy, check_terminal
from osmosis_grpc.cli.run_display import Display
from osmosis_grpc.cli.run_options import RunOptions
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.evaluate import DatasetError, ModelError, Run, RunError, RunFolder
from osmosis_grpc.records.evaluate.run_folder import SCHEMA_VERSION
from osmosis_grpc.records.reading.phrases import counted
from osmosis_grpc.serve.json_output import records
from osmosis_grpc.serve.startup import usage_error

LONGEST = 604_800.0
"""The most seconds of a row in a session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestOptions:
    """The options of this command only."""

    row: int | None
    interactive: bool
    json: bool


def run_test(run: RunOptions, options: TestOptions, given: frozenset[str] = frozenset()) -> int:
    """Run the rows, print the results, and return the exit code: 0, 1, 2 or 130.

    `given` has the names of the options that are on the command line.
    """
    with records(options.json, drops_text=True) as out:
        _check(run, options)
        try:
            prepared = _prepare(run, options, given)
            prepared.probe()
            facts = {**about("test", run, prepared), "inputs": inputs(run, prepared)}
            folder = RunFolder.create(Path(run.save_dir) if run.save_dir else None, facts)
        except (DatasetError, ModelError, RunError, LoadError, OSError) as error:
            usage_error("test", printable(str(error)))
        if options.interactive:
            code = _Interactive(run, prepared, folder, out, options.row or 0).run(json=False, plain=True)
            return 0 if code == 1 else code
        return _Test(run, prepared, folder, out).run(json=options.json, plain=False)


def _check(run: RunOptions, options: TestOptions) -> None:
    if run.module and run.dataset and options.interactive:
        problem = check_terminal() if not options.json else "-i shows a session on stdout; leave out --json"
        if problem:
            usage_error("test", problem)
        if run.offset or run.limit is not None:
            usage_error("test", "-i lets you go to any row; leave out --offset and --limit")
    if options.row is not None and (run.offset or run.limit is not None):
        usage_error("test", "--row runs one row; leave out --offset and --limit")


def _prepare(run: RunOptions, options: TestOptions, given: frozenset[str]) -> Prepared:
    """Check the options. A session can go to every row."""
    rows = Rows(run.offset, run.limit) if options.row is None or options.interactive else Rows(options.row, 1)
    prepared = prepare("test", run, rows, given)
    if not options.interactive:
        return prepared
    config = replace(prepared.config, concurrency=1, agent_timeout=LONGEST, stalled_after=LONGEST)
    return replace(prepared, config=config)


class _Test(DatasetRun):
    """One run of the chosen rows."""

    async def rows(self, display: Display) -> None:
        """See DatasetRun."""
        prepared = self.prepared
        run = Run(prepared.agent_loop, prepared.policy, self.folder, prepared.config)
        rows = prepared.dataset.rows(prepared.rows.offset, prepared.rows.limit)
        await run.run(rows, lambda result, outcome: self.ended(display, result, outcome))

    def say_summary(self, seconds: float) -> None:
        """See DatasetRun."""
        run, summary = str(self.folder.path), self.summary
        self.out.write("summary", run=run, seconds=round(seconds, 3), show=self.show, **summary.record())
        self.say_end(seconds, f"{summary.passed} of {counted(self.total, 'row')} COMPLETED")

    def output(self) -> dict[str, Any]:
        """See DatasetRun."""
        results = sorted(self.folder.results(), key=lambda result: result["row_index"])
        head = {"schema_version": SCHEMA_VERSION, "summary": self.summary.record()}
        return {**head, "run": self.facts(), "results": results}


class _Interactive(_Test):
    """A session with the rows that the user chooses, step by step."""

    def __init__(self, run: RunOptions, prepared: Prepared, folder: RunFolder, out: Any, first: int) -> None:
        super().__init__(run, prepared, folder, out)
        self._first = first

    async def rows(self, display: Display) -> None:
        """See DatasetRun."""
        prepared = self.prepared
        session = Session(prepared.dataset, self._first, prepared.total)
        run = Run(prepared.agent_loop, SteppedPolicy(prepared.policy, session), self.folder, prepared.config)
        session.leave = run.cancel
        await run.run(session.rows(), lambda result, outcome: self.ended(display, result, outcome))
