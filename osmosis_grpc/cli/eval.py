"""The commands test and eval: run the rows of a dataset, each several times if asked, and score the rollouts.

Both share their code: `test` runs each row once, scores nothing, and can stop before each chat. To continue a stopped
run of `eval`, pass --resume, or repeat the command with its --save-dir. This is refused if the inputs have changed.
"""

from dataclasses import replace
from pathlib import Path

from osmosis_grpc.agent.loader import LoadError
from osmosis_grpc.cli.command_options import Choices, RunOptions
from osmosis_grpc.cli.dataset_options import Prepared, about, inputs, prepare, stored
from osmosis_grpc.cli.dataset_run import DatasetRun, Results
from osmosis_grpc.cli.interactive import check_terminal
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.evaluate import DatasetError, ModelError, RunError, RunFolder
from osmosis_grpc.records.evaluate.errors import EvalFunctionError
from osmosis_grpc.records.evaluate.inputs import Inputs, changes
from osmosis_grpc.records.reading.phrases import counted
from osmosis_grpc.serve.json_output import records, say_error, usage_error

OF_EVAL = "eval_fn", "n", "pass_threshold"
"""The options of eval that a continued run takes over."""
OF_MODELS = frozenset(
    {"model", "tokenizer", "base_url", "api_key", "temperature", "max_tokens", "pin_sampling", "price", "replay"}
)
"""The options that a replay does not take over from the replayed run."""


def run_dataset(run: RunOptions, choices: Choices, given: frozenset[str]) -> int:
    """Run the rows without a result, print the results, and return the exit code: 0, 1, 2 or 130.

    `given` has the names of the options on the command line. A resumed run takes all other options from its folder.
    """
    if run.unnamed:
        agents = [word for word in run.unnamed if ":" in word or not Path(word).suffix]
        files = [word for word in run.unnamed if word not in agents]
        meant = [*(f"-m {word}" for word in agents), *(f"-d {word}" for word in files)]
        usage_error(choices.command, printable(f"-m names the agent and -d the dataset: {' '.join(meant)}"))
    with records(choices.json, drops_text=True) as out:
        try:
            if run.replay:
                _check_replay(choices.command, given)
                recorded = RunFolder.open(run.replay, replays=False)
                run = replace(run, replay=str(recorded.path))  # resolved once: `last` could soon name this new run
                run, choices = _with_stored(run, choices, recorded, given | OF_MODELS)
            old = _earlier(run, choices)
            if choices.resume and old is not None:
                run, choices = _with_stored(run, choices, old, given)
            _check(run, choices)
            prepared = prepare(run, choices)
            now = inputs(run, choices, prepared)
            results = _results(old, choices, now)
            total = prepared.total * choices.n
            pending = sum(1 for _ in prepared.pending(choices, results)) if results else total
            if pending:
                prepared.probe()
            folder = _opened(old, run, choices, prepared, now)
        except (DatasetError, ModelError, RunError, LoadError, EvalFunctionError, OSError) as error:
            usage_error(choices.command, printable(str(error)))
        if results:
            done = counted(len(results), "rollout")
            retried = f", and {pending} of {total} run now" if pending else ", and none is left to run"
            say_error(printable(f"{folder.path} has the results of {done}{retried}"))
        return DatasetRun(run, choices, prepared, folder, out, results).run()


def _check_replay(command: str, given: frozenset[str]) -> None:
    """End the command with exit code 2 if options name a model: a replay asks none."""
    models = [f"--{name.replace('_', '-')}" for name in ("model", "tokenizer", "base_url", "api_key") if name in given]
    if models:
        wrong = " and ".join(models)
        usage_error(command, f"--replay takes the replies of a run, and asks no model; leave out {wrong}")


def _check(run: RunOptions, choices: Choices) -> None:
    """End the command with exit code 2 if options exclude each other."""
    command, sliced = choices.command, bool(run.offset or run.limit is not None)
    if (run.env or (run.module and run.dataset)) and choices.interactive:
        problem = check_terminal() if not choices.json else "-i shows a session on stdout; leave out --json"
        if problem:
            usage_error(command, problem)
        if sliced:
            usage_error(command, "-i lets you go to any row; leave out --offset and --limit")
    if choices.row is not None and sliced:
        usage_error(command, "--row runs one row; leave out --offset and --limit")
    if choices.rows is not None and sliced:
        usage_error(command, "--rows chooses rows by number; leave out --offset and --limit")


def _earlier(run: RunOptions, choices: Choices) -> RunFolder | None:
    """Return the run of eval that the options name, if it exists."""
    command = choices.command
    if command != "eval":
        return None
    if choices.resume and run.save_dir:
        usage_error(command, "--resume and --save-dir name a run each; give one of them")
    if choices.fresh and choices.retry_failed:
        usage_error(command, "--fresh begins again, and --retry-failed keeps what is good; give one of them")
    old = None
    if choices.resume:
        old = RunFolder.open(choices.resume, command=command)
    elif run.save_dir and RunFolder.exists(Path(run.save_dir)):
        old = RunFolder.open(run.save_dir)
    if old is not None and old.about.get("command") != command:
        raise RunError(f"{old.path} has a run of the command {old.about.get('command')}; name another folder")
    if old is None and choices.retry_failed:
        usage_error(command, "--retry-failed needs an earlier run; name it with --resume or --save-dir")
    return old


def _with_stored(
    run: RunOptions, choices: Choices, old: RunFolder, given: frozenset[str]
) -> tuple[RunOptions, Choices]:
    """Return the options, taking those that are not on the command line from an earlier run."""
    if given & {"module", "env"}:
        given |= {"module", "env"}
    if "dataset" in given and run.dataset != old.about.get("dataset"):
        given |= {"columns", "limit", "offset", "rows"}  # the stored ones refer to the rows of the other file
    left = {name: value for name, value in old.about.get("options", {}).items() if name not in given}
    of_run = {name: left[name] for name in stored(run) if name in left}
    own = {name: left[name] for name in OF_EVAL if name in left and choices.command == "eval"}
    if "eval_fn" in own:
        own["eval_fn"] = tuple(own["eval_fn"])
    if left.get("rows") and not given & {"limit", "offset"}:
        own["rows"] = left["rows"]
    if choices.rows is not None:
        of_run |= {"limit": run.limit, "offset": run.offset}
    return replace(run, **of_run), replace(choices, **own)


def _results(old: RunFolder | None, choices: Choices, now: Inputs) -> Results:
    """Return the results of the earlier run to keep. Raises RunError if that run had other inputs."""
    if old is None or choices.fresh:
        return {}
    different = changes(old.about.get("inputs", {}), now)
    if different:
        functions = all(text.startswith("eval functions ") for text in different)
        new = "; rescore scores its rollouts with other eval functions" if functions else ""
        raise RunError(
            f"{old.path} is a run with other inputs: {'; '.join(different)}; "
            f"name another folder, or begin again with --fresh, which moves the old results away{new}"
        )
    return old.newest_results()


def _opened(old: RunFolder | None, run: RunOptions, choices: Choices, prepared: Prepared, now: Inputs) -> RunFolder:
    """Open the folder of the run, and lock it for this process."""
    facts = {**about(run, choices, prepared), "inputs": now}
    path = Path(run.save_dir) if run.save_dir else None
    if old is None:
        return RunFolder.create(path, facts)
    if choices.fresh:
        path = old.path
        say_error(printable(f"the old results are in {old.archive()}"))
        return RunFolder.create(path, facts)
    old.resume(facts)
    return old
