"""The test command: runs an agent loop over a dataset with a model of the user's choice, in this process."""

import json as json_module
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.loader import LoadError, load_agent_loops
from osmosis_grpc.agent.source_version import AgentVersion
from osmosis_grpc.cli.daemon_thread import run_in_daemon_thread
from osmosis_grpc.cli.interactive import Session, SteppedPolicy, check_terminal
from osmosis_grpc.cli.program import program
from osmosis_grpc.cli.run_display import Display, failure_text, figures, row_line, shown
from osmosis_grpc.cli.transcript import counted, transcript
from osmosis_grpc.errors import InvalidArgument
from osmosis_grpc.evaluate import (
    Dataset,
    DatasetError,
    ModelError,
    RecordedReplies,
    RowResult,
    Run,
    RunConfig,
    RunError,
    RunFolder,
    Summary,
    open_model,
)
from osmosis_grpc.evaluate.columns import parse_map
from osmosis_grpc.evaluate.models import Model
from osmosis_grpc.evaluate.price import Price
from osmosis_grpc.evaluate.run_folder import SCHEMA_VERSION
from osmosis_grpc.policies import Policy
from osmosis_grpc.serve.json_output import Records, records, say_error
from osmosis_grpc.serve.startup import usage_error
from osmosis_grpc.storage import JournalError
from osmosis_grpc.types import RolloutOutcome
from osmosis_grpc.types.outcome import printable
from osmosis_grpc.types.requests import check_params

T = TypeVar("T")

MOST_FAILURES = 10
"""With --quiet, the summary names at most this many rows that failed."""
INTERRUPTED = 130
LONGEST = 604_800.0
"""The most seconds of a row in a session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command."""

    module: str | None
    dataset: str | None
    model: str
    api_key: str | None
    base_url: str | None
    max_turns: int
    temperature: float | None
    max_tokens: int | None
    limit: int | None
    offset: int
    row: int | None
    output: str | None
    save_dir: str | None
    replay: str | None
    columns: tuple[str, ...]
    price: str | None
    concurrency: int
    timeout: float
    interactive: bool
    quiet: bool
    plain: bool
    debug: bool
    json: bool


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What a run needs, after all options were checked."""

    agent_loop: RolloutAgentLoop
    dataset: Dataset
    offset: int
    limit: int | None
    total: int
    model: Model | None
    """None in a replay."""
    policy: Policy | None
    """The recorded replies of a replay."""
    config: RunConfig


def run_test(options: Options) -> int:
    """Run the rows, print the results, and return the exit code: 0, 1, 2 or 130."""
    with records(options.json) as out:
        try:
            prepared = _prepare(options)
            if prepared.model is not None:
                run_in_daemon_thread(lambda: _probe(prepared))
            about = _about(options, prepared)
            folder = RunFolder.create(Path(options.save_dir) if options.save_dir else None, about)
        except (DatasetError, ModelError, RunError, LoadError) as error:
            usage_error("test", printable(str(error)))
        return _Test(options, prepared, folder, out).run()


async def _probe(prepared: _Prepared) -> None:
    assert prepared.model is not None
    await prepared.model.probe(prepared.config.completion_params)


def _prepare(options: Options) -> _Prepared:
    """Check the options, and read the rows for the first time. A wrong option ends the command with exit code 2."""
    if not options.module:
        usage_error("test", "-m or --module names the agent loop: test -m MODULE:ATTR -d FILE")
    if not options.dataset:
        usage_error("test", "-d or --dataset names the dataset: test -m MODULE:ATTR -d FILE")
    if options.interactive:
        problem = check_terminal() if not options.json else "-i shows a session on stdout; leave out --json"
        if problem:
            usage_error("test", problem)
        if options.offset or options.limit is not None:
            usage_error("test", "-i lets you go to any row; leave out --offset and --limit")
    if options.row is not None and (options.offset or options.limit is not None):
        usage_error("test", "--row runs one row; leave out --offset and --limit")
    params = {"temperature": options.temperature, "max_tokens": options.max_tokens}
    params = {name: value for name, value in params.items() if value is not None}
    try:
        check_params(params, "")
    except InvalidArgument as error:
        path, problem = error.violations[0]
        usage_error("test", f"--{path.strip('.').replace('_', '-')} {problem}")
    columns = _parsed("--map", parse_map, options.columns)
    price = _parsed("--price", Price.of, options.price) if options.price else None
    loops = load_agent_loops([options.module])
    if len(loops) != 1:
        usage_error("test", f"{options.module} has {counted(len(loops), 'agent loop')}; name one of them")
    dataset = Dataset(options.dataset, columns)
    offset, limit = _chosen(options)
    recorded = RunFolder.open(options.replay) if options.replay else None
    if recorded is not None:
        params = {**recorded.about.get("completion_params", {}), **params}
    return _Prepared(
        loops[0],
        dataset,
        offset,
        limit,
        dataset.check(offset, limit),
        None if recorded else open_model(options.model, base_url=options.base_url, api_key=options.api_key),
        RecordedReplies(recorded) if recorded else None,
        RunConfig(
            max_turns=options.max_turns,
            completion_params=params,
            concurrency=1 if options.interactive else options.concurrency,
            agent_timeout=LONGEST if options.interactive else options.timeout,
            stalled_after=LONGEST if options.interactive else RunConfig().stalled_after,
            free=recorded is not None,
            price=price,
        ),
    )


def _chosen(options: Options) -> tuple[int, int | None]:
    """Return the number of the first row, and the most rows. A session can go to every row."""
    if options.row is None or options.interactive:
        return options.offset, options.limit
    return options.row, 1


def _parsed(option: str, parse: Callable[[Any], T], value: Any) -> T:
    """Return the parsed value of an option. A wrong value ends the command with exit code 2."""
    try:
        return parse(value)
    except ValueError as error:
        usage_error("test", printable(f"{option} {error}"))


def _about(options: Options, prepared: _Prepared) -> dict[str, Any]:
    """Return the facts of run.json. The key is not among them."""
    config, agent_loop = prepared.config, prepared.agent_loop
    return {
        "command": "test",
        "module": options.module,
        "agent_loop": agent_loop.name,
        "agent_version": AgentVersion.of(agent_loop).digest,
        "dataset": str(prepared.dataset.path),
        "columns": list(options.columns),
        "offset": prepared.offset,
        "limit": prepared.limit,
        "rows": prepared.total,
        "model": options.model if prepared.model is not None else None,
        "base_url": options.base_url,
        "replay": options.replay,
        "max_turns": config.max_turns,
        "completion_params": dict(config.completion_params),
        "concurrency": config.concurrency,
    }


class _Test:
    """One run of the command after its preparation."""

    def __init__(self, options: Options, prepared: _Prepared, folder: RunFolder, out: Records) -> None:
        self._options = options
        self._prepared = prepared
        self._folder = folder
        self._out = out
        self._summary = Summary()
        self._failed: list[RowResult] = []
        """The first rows that failed."""

    def run(self) -> int:
        """Run the rows and print the end. Return the exit code."""
        options, prepared, began = self._options, self._prepared, time.monotonic()
        self._out.write("started", run=str(self._folder.path), **self._folder.about)
        interrupted, problem = False, ""
        show = {name: getattr(options, name) for name in ("quiet", "json", "debug")}
        plain = options.plain or options.interactive
        rows = self._session if options.interactive else self._rows
        with shown(self._out, prepared.total, plain=plain, **show) as display:
            try:
                run_in_daemon_thread(lambda: rows(display))
            except KeyboardInterrupt:
                interrupted = True
            except (DatasetError, JournalError, OSError) as error:  # the file has changed since it was checked
                problem = printable(str(error))
        self._folder.end("interrupted" if interrupted or problem else "finished", self._summary.record())
        self._end(time.monotonic() - began)
        if options.output and not self._write_output(options.output):
            return 2
        if problem:
            usage_error("test", problem)
        return INTERRUPTED if interrupted else 1 if self._summary.failed and not options.interactive else 0

    @property
    def _policy(self) -> Policy:
        policy = self._prepared.policy if self._prepared.model is None else self._prepared.model.policy
        assert policy is not None
        return policy

    async def _rows(self, display: Display) -> None:
        """Run the chosen rows."""
        prepared = self._prepared
        run = Run(prepared.agent_loop, self._policy, self._folder, prepared.config)
        rows = prepared.dataset.rows(prepared.offset, prepared.limit)
        await run.run(rows, lambda result, outcome: self._ended(display, result, outcome))

    async def _session(self, display: Display) -> None:
        """Run the rows that the user chooses, step by step."""
        prepared = self._prepared
        session = Session(prepared.dataset, self._options.row or 0, prepared.total)
        run = Run(prepared.agent_loop, SteppedPolicy(self._policy, session), self._folder, prepared.config)
        session.leave = run.cancel
        await run.run(session.rows(), lambda result, outcome: self._ended(display, result, outcome))

    def _ended(self, display: Display, result: RowResult, outcome: RolloutOutcome | None) -> None:
        self._summary.add(result)
        if not result.completed and len(self._failed) < MOST_FAILURES:
            self._failed.append(result)
        self._out.write("row", **result.record())
        lines = [row_line(result, self._options.dataset or "")]
        if self._options.debug and outcome is not None:
            lines += (f"  {line}" for line in transcript(outcome, ()))
        display.row("\n".join(lines), result, self._summary)

    def _end(self, seconds: float) -> None:
        """Print the summary. The last line for a run with a failed row is the command that shows the row's rollout."""
        summary, folder = self._summary, shlex.quote(str(self._folder.path))
        # A row that was refused has no rollout in the journal.
        failed = next((result for result in self._failed if result.token_usage), None)
        show = f"{program()} show {failed.rollout_id} --state-dir {folder}" if failed else None
        self._out.write("summary", run=str(self._folder.path), seconds=round(seconds, 3), show=show, **summary.record())
        if self._options.quiet:
            for result in self._failed:
                self._out.say(f"row {result.row_index}: {result.status}  {failure_text(result)}")
        done = f"{summary.passed} of {counted(self._prepared.total, 'row')} COMPLETED"
        self._out.say(", ".join([done, *figures(summary), counted(summary.num_llm_calls, "chat"), f"{seconds:.1f} s"]))
        again = "" if self._prepared.model is None else f" To run it again without a model: --replay {folder}"
        if summary.passed or failed:
            self._out.say(f"The run is in {folder}.{again}")
        if show:
            self._out.say("To see the first failure:" if summary.failed > 1 else "To see the failure:")
            self._out.say(show)

    def _write_output(self, path: str) -> bool:
        """Write the JSON of -o. Print the problem and return False if the file cannot be written."""
        results = sorted(self._folder.results(), key=lambda result: result["row_index"])
        about = {name: value for name, value in self._folder.about.items() if name != "summary"}
        about["folder"] = str(self._folder.path)
        text = json_module.dumps(
            {"schema_version": SCHEMA_VERSION, "summary": self._summary.record(), "run": about, "results": results},
            indent=2,
            ensure_ascii=False,
        )
        try:
            Path(path).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            say_error(printable(f"test: -o {path}: cannot be written: {error.strerror}"))
            return False
        return True
