"""A run of an agent over a dataset, for the commands test and eval: its preparation, its progress, and its end."""

import json as json_module
import os
import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.loader import load_agents
from osmosis_grpc.agent.runnable import Runnable, as_runnable
from osmosis_grpc.agent.source_version import AgentVersion
from osmosis_grpc.cli.daemon_thread import Interruptible, run_in_daemon_thread
from osmosis_grpc.cli.program import program
from osmosis_grpc.cli.run_display import Display, failed_lines, figures, row_lines, shown
from osmosis_grpc.cli.run_options import RunOptions
from osmosis_grpc.cli.screen import say_wrapped
from osmosis_grpc.cli.transcript import transcript
from osmosis_grpc.policies import Policy
from osmosis_grpc.protocol.errors import CallError, InvalidArgument
from osmosis_grpc.protocol.types import RolloutOutcome
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.protocol.types.requests import check_params
from osmosis_grpc.records.evaluate import (
    Dataset,
    DatasetError,
    ModelError,
    RecordedReplies,
    RowResult,
    RunConfig,
    RunError,
    RunFolder,
    Summary,
    open_model,
)
from osmosis_grpc.records.evaluate.columns import parse_map
from osmosis_grpc.records.evaluate.dataset import Chosen, every
from osmosis_grpc.records.evaluate.inputs import Inputs, agent_inputs, digest_of
from osmosis_grpc.records.evaluate.models import Model, check_url
from osmosis_grpc.records.evaluate.price import Price
from osmosis_grpc.records.reading.phrases import counted
from osmosis_grpc.serve.json_output import Records, say_error
from osmosis_grpc.serve.startup import usage_error
from osmosis_grpc.storage import JournalError

T = TypeVar("T")

SCRIPT = "mock:script="
TOKEN_MODELS = ("vllm-grpc:", "smg:")
"""The beginnings of the names of models that osmosis_grpc.cli.token_models opens."""

MOST_FAILURES = 10
"""With --quiet, the summary names at most this many rows that failed."""
INTERRUPTED = 130
STOPPING = 5.0
"""After Ctrl-C, the journal is closed for at most this many seconds."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that the user has chosen."""

    offset: int = 0
    limit: int | None = None
    chosen: Chosen = every


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a run needs, after all options were checked."""

    agent_loop: RolloutAgentLoop | Runnable
    dataset: Dataset
    rows: Rows
    total: int
    """The number of chosen rows."""
    model: Model | None
    """None in a replay."""
    recorded: RecordedReplies | None
    """The recorded replies of a replay."""
    config: RunConfig

    @property
    def policy(self) -> Policy:
        """The policy that answers the chats."""
        if self.model is not None:
            return self.model.policy
        assert self.recorded is not None
        return self.recorded

    def probe(self) -> None:
        """Ask the model once. Raises ModelError."""
        model = self.model
        if model is not None:
            run_in_daemon_thread(lambda: model.probe(self.config.completion_params))


def prepare(
    command: str, options: RunOptions, rows: Rows, given: frozenset[str] = frozenset(), *, runs: int = 1
) -> Prepared:
    """Check the options, and read the rows for the first time. A wrong option ends the command with exit code 2.

    `given` has the names of the options on the command line, and `runs` is how often each row runs.
    Raises DatasetError, ModelError, RunError and LoadError.
    """
    if not options.module:
        usage_error(command, f"-m or --module names the agent loop: {command} -m MODULE:ATTR -d FILE")
    if not options.dataset:
        usage_error(command, f"-d or --dataset names the dataset: {command} -m MODULE:ATTR -d FILE")
    params = {"temperature": options.temperature, "max_tokens": options.max_tokens}
    params = {name: value for name, value in params.items() if value is not None}
    try:
        check_params(params, "")
    except InvalidArgument as error:
        path, problem = error.violations[0]
        usage_error(command, f"--{path.strip('.').replace('_', '-')} {problem}")
    _check_output(command, options.output)
    if options.replay:
        models = [
            f"--{name.replace('_', '-')}" for name in ("model", "tokenizer", "base_url", "api_key") if name in given
        ]
        if models:
            wrong = " and ".join(models)
            usage_error(command, f"--replay takes the replies of a run, and asks no model; leave out {wrong}")
    if options.base_url:
        check_url(options.base_url)
    columns = parsed(command, "--map", parse_map, tuple(options.columns or ()))
    price = parsed(command, "--price", Price.of, options.price) if options.price else None
    loops = load_agents([options.module], options.sources())
    if len(loops) != 1:
        usage_error(command, f"{options.module} has {counted(len(loops), 'agent loop')}; name one of them")
    dataset = Dataset(options.dataset, columns)
    recorded, pinned = RunFolder.open(options.replay, replays=False) if options.replay else None, options.pin_sampling
    if recorded is not None:
        _check_runs(recorded, runs)
        params = {**recorded.about.get("completion_params", {}), **params}
        pinned = pinned or bool(recorded.about.get("pin_sampling"))
    return Prepared(
        loops[0],
        dataset,
        rows,
        dataset.check(rows.offset, rows.limit, rows.chosen),
        None if recorded else model_of(options),
        RecordedReplies(recorded) if recorded else None,
        RunConfig(
            max_turns=options.max_turns,
            completion_params=params,
            pin_completion_params=pinned,
            concurrency=options.concurrency,
            agent_timeout=options.timeout,
            free=recorded is not None,
            price=price,
        ),
    )


def model_of(options: RunOptions) -> Model:
    """Return the model that the options name. Raises ModelError, and MissingExtraError without its library."""
    if not options.model.startswith(TOKEN_MODELS):
        if options.tokenizer:
            raise ModelError(
                f"--tokenizer is for a model over gRPC, such as vllm-grpc:HOST:PORT, not for {options.model}"
            )
        return open_model(options.model, base_url=options.base_url, api_key=options.api_key)
    if options.base_url or options.api_key:
        raise ModelError(f"{options.model} has its address in its name, and no key; leave out --base-url and --api-key")
    from osmosis_grpc.cli.token_models import open_token_model  # the others need no grpc

    return open_token_model(options.model, options.tokenizer)


def _configuration(options: RunOptions) -> dict[str, Any]:
    """Return what the configurations of a workflow and its grader depend on. Raises OSError."""
    parts = {
        "config": digest_of(Path(options.config)) if options.config else None,
        "workflow_config": list(options.workflow_config or ()),
        "grader_config": list(options.grader_config or ()),
        "grader": options.grader,
    }
    return {name: value for name, value in parts.items() if value}


def _check_output(command: str, path: str | None) -> None:
    """End the command with exit code 2 if the file of -o cannot be written, before a model is asked."""
    if not path:
        return
    folder = Path(path).parent
    problem = ""
    if Path(path).is_dir():
        problem = "is a folder; name a file in it"
    elif not folder.is_dir():
        problem = f"there is no folder {folder}; make it first"
    elif not os.access(path if Path(path).exists() else folder, os.W_OK):
        problem = "cannot be written; name another file"
    if problem:
        usage_error(command, printable(f"-o {path}: {problem}"))


def _check_runs(recorded: RunFolder, runs: int) -> None:
    """Raise RunError if the rows of a recorded run ran another number of times, so that it has other rollouts."""
    known = int(recorded.about.get("n", 1))
    if known != runs and (min(known, runs) == 1 or known < runs):
        command = recorded.about.get("command")
        raise RunError(
            f"{recorded.path} is a run of {command} with {counted(known, 'run')} of each row, not {runs}; "
            f"replay it with eval --n {known}"
        )


def parsed(command: str, option: str, parse: Callable[[Any], T], value: Any) -> T:
    """Return the parsed value of an option. A wrong value ends the command with exit code 2."""
    try:
        return parse(value)
    except ValueError as error:
        usage_error(command, printable(f"{option} {error}"))


def about(command: str, options: RunOptions, prepared: Prepared) -> dict[str, Any]:
    """Return the facts of run.json. The key is not among them."""
    config, agent_loop = prepared.config, prepared.agent_loop
    return {
        "command": command,
        "module": options.module,
        "agent_loop": agent_loop.name,
        "agent_version": AgentVersion.of(as_runnable(agent_loop).source).digest,
        "dataset": str(prepared.dataset.path),
        "columns": list(options.columns or ()),
        "offset": prepared.rows.offset,
        "limit": prepared.rows.limit,
        "rows": prepared.total,
        "model": options.model if prepared.model is not None else None,
        "base_url": prepared.model.url if prepared.model is not None else None,
        "replay": options.replay,
        "max_turns": config.max_turns,
        "completion_params": dict(config.completion_params),
        "pin_sampling": config.pin_completion_params,
        "concurrency": config.concurrency,
    }


def inputs(options: RunOptions, prepared: Prepared) -> Inputs:
    """Return what the rollouts depend on. Raises OSError if a file cannot be read."""
    model: dict[str, Any] = {"model": options.model}
    if prepared.model is None:
        model = {"replay": options.replay}
    elif prepared.model.url is not None:
        model["base_url"] = prepared.model.url
        if options.tokenizer:
            model["tokenizer"] = digest_of(Path(options.tokenizer) / "tokenizer.json")
    elif options.model.startswith(SCRIPT):
        model["script"] = digest_of(Path(options.model.removeprefix(SCRIPT)))
    return {
        "agent": agent_inputs(prepared.agent_loop),
        "configuration": _configuration(options),
        "dataset": {"file": digest_of(prepared.dataset.path), "columns": list(options.columns or ())},
        "model": model,
        "sampling": {
            **prepared.config.completion_params,
            **({"pinned": True} if prepared.config.pin_completion_params else {}),
            "max_turns": options.max_turns,
        },
    }


class DatasetRun(ABC):
    """One run after its preparation. `unit` is the word for what is counted."""

    unit = "row"

    def __init__(self, options: RunOptions, prepared: Prepared, folder: RunFolder, out: Records) -> None:
        self.options = options
        self.prepared = prepared
        self.folder = folder
        self.out = out
        self.summary = Summary()
        self.total = prepared.total
        """The number of results at the end."""
        self._failed: list[RowResult] = []
        """The first results that failed."""
        self.unfinished = ""
        """Why the run ended before its last row, in one word."""

    @abstractmethod
    async def rows(self, display: Display) -> None:
        """Run the rows, and call ended() with each result."""

    @abstractmethod
    def output(self) -> dict[str, Any]:
        """Return the content of the file of -o."""

    @abstractmethod
    def say_summary(self, seconds: float) -> None:
        """Write the record and the lines of the summary."""

    def run(self, *, json: bool, plain: bool) -> int:
        """Run the rows, print the end, and return the exit code: 0, 1, 2 or 130."""
        options, began = self.options, time.monotonic()
        self.out.write("started", run=str(self.folder.path), **self.folder.about)
        self.say_start()
        interrupted, problem = False, ""
        show: dict[str, Any] = {"quiet": options.quiet, "json": json, "debug": options.debug, "unit": self.unit}
        with shown(self.out, self.total, plain=plain or options.plain, **show) as display:
            running = Interruptible(lambda: self.rows(display))
            try:
                running.run()
            except KeyboardInterrupt:
                interrupted = True
                running.stop(STOPPING)
            except (DatasetError, JournalError, CallError, RunError, OSError) as error:  # the files changed, or a disk
                problem = printable(str(error))
        try:
            self.folder.end("interrupted" if interrupted or problem else "finished", self.summary.record())
        except OSError as error:
            problem = problem or printable(str(error))
        self.unfinished = "interrupted" if interrupted else "stopped" if problem else ""
        self.say_summary(time.monotonic() - began)
        if options.output and not self._write_output(options.output):
            return 2
        if problem:
            usage_error(self.command, problem)
        return INTERRUPTED if interrupted else int(bool(self.summary.failed or self.summary.unscored))

    def say_start(self) -> None:  # noqa: B027
        """Print a line before the first row. By default, print none."""

    @property
    def continued(self) -> str | None:
        """The command that continues the run; None if no command does."""
        return None

    @property
    def command(self) -> str:
        """The name of the command."""
        return str(self.folder.about["command"])

    def count(self, result: RowResult) -> None:
        """Add a result to the summary."""
        self.summary.add(result)
        if not result.good and len(self._failed) < MOST_FAILURES:
            self._failed.append(result)

    def ended(self, display: Display, result: RowResult, outcome: RolloutOutcome | None) -> None:
        """Show a new result."""
        self.count(result)
        self.out.write("row", **result.record())
        lines = row_lines(result, self.options.dataset or "")
        if self.options.debug and outcome is not None:
            lines += (f"  {line}" for line in transcript(outcome, ()))
        display.row("\n".join(lines), result, self.summary)

    @property
    def show(self) -> str | None:
        """The command that shows the first failure. A row that was refused has no rollout in the journal."""
        failed, folder = self._first_failed, shlex.quote(str(self.folder.path))
        return f"{program()} show {failed.rollout_id} --state-dir {folder}" if failed else None

    @property
    def view(self) -> str | None:
        """The command that shows the first failure in a browser, at the turn to look at."""
        failed, folder = self._first_failed, shlex.quote(str(self.folder.path))
        return f"{program()} view {folder} --rollout {failed.rollout_id}" if failed else None

    @property
    def _first_failed(self) -> RowResult | None:
        return next((result for result in self._failed if result.token_usage), None)

    def say_end(self, seconds: float, done: str) -> None:
        """Print the last lines. The very last one is the command to use next."""
        summary, folder = self.summary, shlex.quote(str(self.folder.path))
        if self.options.quiet:
            for result in self._failed:
                for text in failed_lines(result, self.options.dataset or ""):
                    say_wrapped(self.out, text)
        sums = [done, *figures(summary, scores=False), counted(summary.num_llm_calls, "chat"), f"{seconds:.1f} s"]
        say_wrapped(self.out, f"{self.unfinished}: " * bool(self.unfinished) + ", ".join(sums))
        continued = self.continued if self.unfinished else None
        again = self.prepared.model is not None and not continued
        if summary.passed or self.show or continued:
            self.out.say(f"The run is in {folder}.")
        if again and (summary.passed or self.show):
            self.out.say(f"To run it again without a model: --replay {folder}")
        if self.show and self.view:
            several = summary.failed + summary.unscored > 1
            which = "the first failure" if several else "the failure"
            self.out.say(f"To see {which} in a browser:")
            self.out.say(self.view)
            self.out.say(f"To see {which}:")
            self.out.say(self.show)
        if continued:
            self.out.say("To continue it:")
            self.out.say(continued)

    def _write_output(self, path: str) -> bool:
        """Write the JSON of -o. Print the problem and return False if the file cannot be written."""
        try:
            text = json_module.dumps(self.output(), indent=2, ensure_ascii=False)
            Path(path).write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            say_error(printable(f"{self.command}: -o {path}: cannot be written: {error.strerror}"))
            return False
        return True

    def facts(self) -> dict[str, Any]:
        """Return the facts about the run for the file of -o."""
        known = {name: value for name, value in self.folder.about.items() if name not in ("summary", "inputs")}
        return {**known, "folder": str(self.folder.path)}


def stored(options: RunOptions) -> dict[str, Any]:
    """Return the options that a run can be continued with. The key is not among them."""
    left_out = ("api_key", "output", "save_dir", "quiet", "plain", "debug")
    return {name: value for name, value in asdict(options).items() if name not in left_out}
