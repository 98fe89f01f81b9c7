"""Commands that run an agent over a dataset."""

import typer

from osmosis_grpc.cli.command_options import RunOptions, with_run_options
from osmosis_grpc.cli.options import Json, SourceOptions, argument, option, with_journal

commands = typer.Typer()


def _given(context: typer.Context) -> frozenset[str]:
    """Return the names of the options that are on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(name for name, found in sources.items() if found is not None and found.name == "COMMANDLINE")


@commands.command("test", short_help="Run an agent loop over a dataset, and keep the run.")
@with_run_options
def run_dataset(
    context: typer.Context,
    *,
    run: RunOptions,
    row: int | None = option("--row N", "Run only row N, from 0. With -i, begin there.", min=0),
    interactive: bool = option("-i, --interactive", "Stop before each chat, and ask what to do.", False),
    json: Json = False,
) -> None:
    """Run an agent loop over a dataset with a model, and keep the run in a folder.

    The model is asked once before the first row. Exit codes: 0 all rows completed, 1 some rows failed, 2 usage,
    130 interrupted.
    """
    from osmosis_grpc.cli.dataset_options import Choices
    from osmosis_grpc.cli.eval import run_dataset as run_rows

    choices = Choices(command="test", row=row, interactive=interactive, json=json)
    raise typer.Exit(run_rows(run, choices, _given(context)))


@commands.command("eval", short_help="Score an agent loop over a dataset with eval functions.")
@with_run_options
def evaluate_dataset(
    context: typer.Context,
    *,
    eval_fn: list[str] | None = option(
        "--eval-fn MODULE:FUNCTION", "A function that scores; repeatable. Default: the agent's reward."
    ),
    n: int = option("--n N", "Run each row N times, for pass@k.", 1, min=1, max=1000),
    pass_threshold: float = option("--pass-threshold X", "A score of at least X passes.", 1.0),
    run: RunOptions,
    rows: str | None = option("--rows LIST", "Only these rows, from 0, as 3,7,10-20."),
    resume: str | None = option("--resume RUN", "Continue a run, or the `last` one, with its options."),
    fresh: bool = option("--fresh", "Begin again. The old results are moved to RUN.archive-TIME.", False),
    retry_failed: bool = option("--retry-failed", "Also run again what failed in the earlier run.", False),
    json: Json = False,
) -> None:
    """Score an agent loop over a dataset with eval functions, with pass@k for several runs of each row.

    An eval function takes (solution_str, ground_truth, extra_info) or (messages, ground_truth, metadata). The same
    command with the --save-dir of a run that was stopped continues the run, and so does --resume.

    Exit codes: 0 all scored, 1 a rollout or a score failed, 2 usage, 130 interrupted.
    """
    from osmosis_grpc.cli.dataset_options import Choices
    from osmosis_grpc.cli.eval import run_dataset as run_rows

    choices = Choices(
        command="eval",
        eval_fn=tuple(eval_fn or ()),
        n=n,
        pass_threshold=pass_threshold,
        rows=rows,
        resume=resume,
        fresh=fresh,
        retry_failed=retry_failed,
        json=json,
    )
    raise typer.Exit(run_rows(run, choices, _given(context)))


@commands.command(short_help="Compare the scores of two runs over the same dataset.")
def compare(
    first: str = argument("RUN_A", "The folder of a run of eval or test.", ...),
    second: str = argument("RUN_B", "The folder of another run, or `last`.", ...),
    json: Json = False,
) -> None:
    """Compare the scores of two runs over the same dataset, row by row, with confidence intervals.

    Exit codes: 0 compared, 2 the runs cannot be compared.
    """
    from osmosis_grpc.cli.compare import run_compare

    raise typer.Exit(run_compare(first, second, json=json))


@commands.command()
@with_journal
def rescore(
    run: str | None = argument("[RUN]", "The folder of a run of eval or test, or `last`."),
    eval_fn: list[str] | None = option("--eval-fn MODULE:FUNCTION", "A function that scores; repeatable."),
    grader: str | None = option("--grader MODULE:CLASS", "A grader that scores."),
    grader_config: list[str] | None = option(
        "--grader-config KEY=VALUE", "A value of the grader's configuration; repeatable."
    ),
    author: str = option("--author NAME", "The author of the annotations.", "rescore"),
    agent: str = option("--agent NAME", "Only this agent loop.", ""),
    group: str = option("--group ID", "Only this group.", ""),
    concurrency: int = option("--concurrency N", "The rollouts at once.", 4, min=1, max=1000),
    timeout: float = option("--timeout SECONDS", "The most time of a score.", 1800.0, min=0.1, max=604_800),
    quiet: bool = option("-q, --quiet", "Only failed scores and the summary.", False),
    json: Json = False,
    *,
    source: SourceOptions,
) -> None:
    """Score recorded rollouts again, with eval functions or a grader.

    Each score is an annotation.

    The rollouts are in the folder of a run, in a state folder that no server uses, or on a running server. Their old
    rewards stay. A score that a rollout has already is not computed again.

    Exit codes: 0 all scored, 1 some scores failed, 2 usage, 130 interrupted.
    """
    from osmosis_grpc.cli.rescore import RescoreOptions, run_rescore

    options = RescoreOptions(
        run=run,
        eval_fn=tuple(eval_fn or ()),
        grader=grader,
        grader_config=tuple(grader_config or ()),
        author=author,
        agent=agent,
        group=group,
        concurrency=concurrency,
        timeout=timeout,
        quiet=quiet,
        json=json,
    )
    raise typer.Exit(run_rescore(options, source))
