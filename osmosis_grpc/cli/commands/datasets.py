"""Commands that run an agent over a dataset."""

from dataclasses import replace

import typer

from osmosis_grpc.cli.command_options import (
    Choices,
    RescoreOptions,
    RunOptions,
    with_eval_choices,
    with_rescore,
    with_run_options,
    with_test_choices,
)
from osmosis_grpc.cli.options import Json, SourceOptions, argument, with_source

commands = typer.Typer()


def _given(context: typer.Context) -> frozenset[str]:
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(name for name, found in sources.items() if found is not None and found.name == "COMMANDLINE")


@commands.command("test", short_help="Run an agent loop over a dataset, and keep the run.")
@with_run_options
@with_test_choices
def run_dataset(context: typer.Context, *, run: RunOptions, choices: Choices, json: Json = False) -> None:
    """Run an agent loop over a dataset with a model, and keep the run in a folder.

    Before the first row, one chat tests the model. Exit codes: 0 all rows completed, 1 some rows failed, 2 usage,
    130 interrupted.
    """
    from osmosis_grpc.cli.eval import run_dataset as run_rows

    choices = replace(choices, command="test", json=json)
    raise typer.Exit(run_rows(run, choices, _given(context)))


@commands.command("eval", short_help="Score an agent loop over a dataset with eval functions.")
@with_run_options
@with_eval_choices
def evaluate_dataset(context: typer.Context, *, choices: Choices, run: RunOptions, json: Json = False) -> None:
    """Score an agent loop over a dataset with eval functions, and compute pass@k if each row runs several times.

    An eval function takes (solution_str, ground_truth, extra_info) or (messages, ground_truth, metadata). To continue
    a run that was stopped, name it with --resume, or repeat the command with its --save-dir.

    Exit codes: 0 all scored, 1 a rollout or a score failed, 2 usage, 130 interrupted.
    """
    from osmosis_grpc.cli.eval import run_dataset as run_rows

    choices = replace(choices, command="eval", json=json)
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
@with_source
@with_rescore
def rescore(*, options: RescoreOptions, json: Json = False, source: SourceOptions) -> None:
    """Score recorded rollouts again, with eval functions or a grader.

    Each score is stored as an annotation.

    The rollouts are in the folder of a run, in a state folder that no server uses, or on a running server. Their old
    rewards stay. If a rollout already has a score, it is not computed again.

    Exit codes: 0 all scored, 1 some scores failed, 2 usage, 130 interrupted.
    """
    from osmosis_grpc.cli.rescore import run_rescore

    raise typer.Exit(run_rescore(options, source, json=json))
