"""Commands that run an agent over a dataset."""

from typing import Annotated

import typer

from osmosis_grpc.cli.commands.shared import Json
from osmosis_grpc.cli.config_options import GraderConfig
from osmosis_grpc.cli.run_options import RunOptions, with_run_options
from osmosis_grpc.cli.source_options import SourceOptions, with_journal

commands = typer.Typer()

EvalFunctions = Annotated[
    list[str] | None,
    typer.Option(
        "--eval-fn", metavar="MODULE:FUNCTION", help="A function that scores; repeatable. Default: the agent's reward."
    ),
]


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
    row: Annotated[
        int | None, typer.Option("--row", metavar="N", min=0, help="Run only row N, from 0. With -i, begin there.")
    ] = None,
    interactive: Annotated[
        bool, typer.Option("-i", "--interactive", help="Stop before each chat, and ask what to do.")
    ] = False,
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
    eval_fn: EvalFunctions = None,
    n: Annotated[int, typer.Option("--n", metavar="N", min=1, max=1000, help="Run each row N times, for pass@k.")] = 1,
    pass_threshold: Annotated[
        float, typer.Option("--pass-threshold", metavar="X", help="A score of at least X passes.")
    ] = 1.0,
    run: RunOptions,
    rows: Annotated[
        str | None, typer.Option("--rows", metavar="LIST", help="Only these rows, from 0, as 3,7,10-20.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Continue a run, or the `last` one, with its options.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin again. The old results are moved to RUN.archive-TIME.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Also run again what failed in the earlier run.")
    ] = False,
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
    first: Annotated[str, typer.Argument(metavar="RUN_A", help="The folder of a run of eval or test.")],
    second: Annotated[str, typer.Argument(metavar="RUN_B", help="The folder of another run, or `last`.")],
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
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="The folder of a run of eval or test, or `last`.")
    ] = None,
    eval_fn: Annotated[
        list[str] | None,
        typer.Option("--eval-fn", metavar="MODULE:FUNCTION", help="A function that scores; repeatable."),
    ] = None,
    grader: Annotated[
        str | None, typer.Option("--grader", metavar="MODULE:CLASS", help="A grader that scores.")
    ] = None,
    grader_config: GraderConfig = None,
    author: Annotated[str, typer.Option("--author", metavar="NAME", help="The author of the annotations.")] = "rescore",
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="Only this agent loop.")] = "",
    group: Annotated[str, typer.Option("--group", metavar="ID", help="Only this group.")] = "",
    concurrency: Annotated[
        int, typer.Option("--concurrency", metavar="N", min=1, max=1000, help="The rollouts at once.")
    ] = 4,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, max=604_800, help="The most time of a score.")
    ] = 1800.0,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only failed scores and the summary.")] = False,
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
