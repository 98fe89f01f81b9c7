"""Checks the options of test and eval, and collects the inputs on which a run depends."""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.loader import as_agents
from osmosis_grpc.agent.runnable import Runnable, as_runnable
from osmosis_grpc.agent.source_version import AgentVersion
from osmosis_grpc.cli.command_options import Choices, ForkOptions, RunOptions
from osmosis_grpc.cli.daemon_thread import run_in_daemon_thread
from osmosis_grpc.environments.loading import load_hosted
from osmosis_grpc.environments.spec import PREFIX
from osmosis_grpc.policies import Policy
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.protocol.types.requests import check_params
from osmosis_grpc.records.evaluate import (
    Dataset,
    ModelError,
    RecordedReplies,
    Row,
    RowResult,
    RunConfig,
    RunError,
    RunFolder,
    open_model,
)
from osmosis_grpc.records.evaluate.columns import parse_map
from osmosis_grpc.records.evaluate.dataset import Chosen, RowChoice, every
from osmosis_grpc.records.evaluate.eval_functions import EvalFunction, load_eval_functions
from osmosis_grpc.records.evaluate.inputs import Inputs, agent_inputs, digest_of, function_inputs, program_inputs
from osmosis_grpc.records.evaluate.models import Model, check_url
from osmosis_grpc.records.evaluate.results import Price
from osmosis_grpc.records.reading.phrases import counted
from osmosis_grpc.serve.json_output import usage_error

T = TypeVar("T")

SCRIPT = "mock:script="
TOKEN_MODELS = ("vllm-grpc:", "vllm-http:", "smg:")
"""The prefixes of model names that osmosis_grpc.cli.token_models opens."""
LONGEST = 604_800.0
"""The time limit of a row with --interactive, in seconds."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that the user has chosen."""

    offset: int = 0
    limit: int | None = None
    chosen: Chosen = every


@dataclass(frozen=True, slots=True)
class Prepared:
    """The parts of a run. All options have been checked."""

    agent_loop: RolloutAgentLoop | Runnable
    dataset: Dataset
    rows: Rows
    total: int
    """The number of chosen rows."""
    model: Model | None
    """The model; None in a replay."""
    recorded: RecordedReplies | None
    """The recorded replies in a replay; otherwise None."""
    config: RunConfig
    functions: list[EvalFunction]
    """The eval functions. If there are none, eval scores a rollout by its own reward."""

    serving: Callable[[], AbstractAsyncContextManager[None]]
    """Serves the base URLs of a program while the rows run."""

    @property
    def policy(self) -> Policy:
        """The policy that answers the chats."""
        if self.model is not None:
            return self.model.policy
        assert self.recorded is not None
        return self.recorded

    def probe(self) -> None:
        """Test the model with one chat. Raises ModelError."""
        model = self.model
        if model is not None:
            run_in_daemon_thread(lambda: model.probe(self.config.completion_params))

    def pending(self, choices: Choices, results: Mapping[tuple[int, int], RowResult]) -> Iterator[Row]:
        """Yield each run of each row that must run or be scored. Raises DatasetError.

        `results` has the results of the earlier run, by row and by run of the row.
        """
        for row in self.dataset.rows(self.rows.offset, self.rows.limit, self.rows.chosen):
            for index in range(choices.n):
                known = results.get((row.number, index))
                if known is None:
                    yield replace(row, run_index=index, runs=choices.n)
                elif choices.retry_failed and not known.good:
                    attempt = known.attempt + (not known.completed)  # a rollout that completed is only scored again
                    yield replace(row, run_index=index, runs=choices.n, attempt=attempt)


def prepare(options: RunOptions, choices: Choices) -> Prepared:
    """Check the options, and read the rows for the first time. A wrong option ends the command with exit code 2.

    Args:
        options: The options that both commands have.
        choices: The options that only one of them has.

    Raises:
        DatasetError, ModelError, RunError, LoadError, EvalFunctionError: Something that the options name is unusable.
    """
    command = choices.command
    env = PREFIX + options.env if options.env else None
    if sum(each is not None for each in (options.module, env, options.command)) > 1:
        usage_error(command, "-m, --env and --command name an agent each; give one of them")
    module, source = options.module or env, options.dataset or env
    if not module and not options.command:
        usage_error(command, f"-m or --module names the agent loop: {command} -m MODULE:ATTR -d FILE")
    if not source:
        usage_error(command, f"-d or --dataset names the dataset: {command} -m MODULE:ATTR -d FILE")
    if not math.isfinite(choices.pass_threshold):
        usage_error(command, f"--pass-threshold {choices.pass_threshold} is not a finite number")
    rows = _rows(options, choices)
    functions = load_eval_functions(choices.eval_fn)
    params = {"temperature": options.temperature, "max_tokens": options.max_tokens}
    params = {name: value for name, value in params.items() if value is not None}
    try:
        check_params(params, "")
    except InvalidArgument as error:
        path, problem = error.violations[0]
        usage_error(command, f"--{path.strip('.').replace('_', '-')} {problem}")
    _check_output(command, options.output)
    if options.base_url:
        check_url(options.base_url)
    columns = parsed(command, "--map", parse_map, tuple(options.columns or ()))
    price = parsed(command, "--price", Price.of, options.price) if options.price else None
    agent, serving = _agent(command, module, options)
    dataset = Dataset(source, columns)
    recorded, pinned = RunFolder.open(options.replay, replays=False) if options.replay else None, options.pin_sampling
    if recorded is not None:
        _check_runs(recorded, choices.n)
        params = {**recorded.about.get("completion_params", {}), **params}
        pinned = pinned or bool(recorded.about.get("pin_sampling"))
    stepped = choices.interactive
    prepared = Prepared(
        agent,
        dataset,
        rows,
        dataset.check(rows.offset, rows.limit, rows.chosen),
        None if recorded else model_of(options),
        RecordedReplies(recorded) if recorded else None,
        RunConfig(
            max_turns=options.max_turns,
            completion_params=params,
            pin_completion_params=pinned,
            concurrency=1 if stepped else options.concurrency,
            agent_timeout=LONGEST if stepped else options.timeout,
            stalled_after=LONGEST if stepped else RunConfig().stalled_after,
            free=recorded is not None,
            price=price,
            evaluation=command == "eval",
        ),
        functions,
        serving,
    )
    missing = rows.chosen.after(prepared.total) if isinstance(rows.chosen, RowChoice) else None
    if missing is not None:
        usage_error(command, printable(f"--rows {choices.rows}: {dataset.name} has no row {missing}"))
    return prepared


def _rows(options: RunOptions, choices: Choices) -> Rows:
    """Return the chosen rows. With --interactive, the user can go to any row."""
    if choices.rows:
        chosen = parsed(choices.command, "--rows", RowChoice, choices.rows)
        return Rows(0, chosen.last + 1, chosen)
    if choices.row is not None and not choices.interactive:
        return Rows(choices.row, 1)
    return Rows(options.offset, options.limit)


def model_of(options: RunOptions | ForkOptions) -> Model:
    """Open the model that the options name. Raises ModelError, and MissingExtraError if its library is missing."""
    if not options.model.startswith(TOKEN_MODELS):
        if options.tokenizer:
            raise ModelError(
                f"--tokenizer is for a model that takes tokens, such as vllm-grpc:HOST:PORT, not for {options.model}"
            )
        return open_model(options.model, base_url=options.base_url, api_key=options.api_key)
    if options.base_url or options.api_key:
        raise ModelError(f"{options.model} has its address in its name, and no key; leave out --base-url and --api-key")
    from osmosis_grpc.cli.token_models import open_token_model  # the others need no grpc

    return open_token_model(options.model, options.tokenizer)


def _configuration(options: RunOptions) -> dict[str, Any]:
    """Return the inputs of the configurations of a workflow and its grader. Raises OSError."""
    parts = {
        "config": digest_of(Path(options.config)) if options.config else None,
        "workflow_config": list(options.workflow_config or ()),
        "grader_config": list(options.grader_config or ()),
        "grader": options.grader,
    }
    return {name: value for name, value in parts.items() if value}


def _check_output(command: str, path: str | None) -> None:
    """End the command with exit code 2 if the file of -o cannot be written. Call this before a model is asked."""
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
    """Raise RunError if a recorded run lacks rollouts, because it ran each row another number of times."""
    known = int(recorded.about.get("n", 1))
    if known != runs and (min(known, runs) == 1 or known < runs):
        command = recorded.about.get("command")
        raise RunError(
            f"{recorded.path} is a run of {command} with {counted(known, 'run')} of each row, not {runs}; "
            f"replay it with eval --n {known}"
        )


def _agent(
    command: str, module: str | None, options: RunOptions
) -> tuple[RolloutAgentLoop | Runnable, Callable[[], AbstractAsyncContextManager[None]]]:
    """Return the agent, and what serves its base URLs if it is a program. Raises LoadError."""
    if module is None:
        if _configuration(options):
            usage_error(command, "--config, --grader and their values are for workflows; leave them out with --command")
        from osmosis_grpc.endpoints.hosted_programs import command_agent
        from osmosis_grpc.settings.process_environment import program_environment

        try:
            return command_agent(str(options.command), program_environment(()))
        except ValueError as error:
            usage_error(command, printable(f"--command: {error}"))
    loops = as_agents(load_hosted([module], options.sources()))
    if len(loops) != 1:
        usage_error(command, f"{module} has {counted(len(loops), 'agent loop')}; name one of them")
    return loops[0], nullcontext


def parsed(command: str, option: str, parse: Callable[[Any], T], value: Any) -> T:
    """Parse the value of an option, and return it. A wrong value ends the command with exit code 2."""
    try:
        return parse(value)
    except ValueError as error:
        usage_error(command, printable(f"{option} {error}"))


def about(options: RunOptions, choices: Choices, prepared: Prepared) -> dict[str, Any]:
    """Return the content of run.json. It does not contain the API key."""
    config, agent_loop = prepared.config, prepared.agent_loop
    own = {"n": choices.n, "pass_threshold": choices.pass_threshold}
    functions = list(choices.eval_fn)
    options_of_eval = {**stored(options), **own, "eval_fn": functions, "rows": choices.rows}
    return {
        "command": choices.command,
        "module": options.module or options.env or options.command,
        "agent_loop": agent_loop.name,
        "agent_version": AgentVersion.of(as_runnable(agent_loop).source).digest,
        "dataset": prepared.dataset.name,
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
        "options": options_of_eval if choices.command == "eval" else stored(options),
        **({**own, "eval_fns": functions} if choices.command == "eval" else {}),
    }


def inputs(options: RunOptions, choices: Choices, prepared: Prepared) -> Inputs:
    """Return the inputs on which the rollouts depend. Raises OSError if a file cannot be read."""
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
        "agent": program_inputs(prepared.agent_loop.name, options.command)
        if options.command
        else agent_inputs(prepared.agent_loop),
        "configuration": _configuration(options),
        "dataset": {"file": prepared.dataset.digest(), "columns": list(options.columns or ())},
        "model": model,
        "sampling": {
            **prepared.config.completion_params,
            **({"pinned": True} if prepared.config.pin_completion_params else {}),
            "max_turns": options.max_turns,
        },
        **(
            {"eval functions": function_inputs(prepared.functions), "runs": {"n": choices.n}}
            if choices.command == "eval"
            else {}
        ),
    }


def stored(options: RunOptions) -> dict[str, Any]:
    """Return the options to store, so that the run can be continued with them. The API key is not among them."""
    left_out = ("unnamed", "api_key", "output", "save_dir", "quiet", "plain", "debug")
    return {name: value for name, value in asdict(options).items() if name not in left_out}
