"""Commands that run an agent over a dataset."""

from typing import Annotated

import typer

from osmosis_grpc.cli.commands.shared import ConfigFile, GraderClass, GraderConfig, Json, WorkflowConfig

commands = typer.Typer()


@commands.command("test")
def run_dataset(
    module: Annotated[
        str | None,
        typer.Option("-m", "--module", "--agent", metavar="MODULE:ATTR", help="Agent loop or workflow.  [required]"),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("-d", "--dataset", metavar="FILE", help=".json, .jsonl, .csv or .parquet.  [required]")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="NAME",
            help="mock:echo, mock:tools, mock:script=FILE, litellm:NAME, or a name of the server at --base-url.",
        ),
    ] = "gpt-5-mini",
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", metavar="URL", help="An OpenAI-compatible server. Default: OPENAI_BASE_URL"),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key", metavar="KEY", help="Its key. Others see a command line: prefer the variable OPENAI_API_KEY."
        ),
    ] = None,
    max_turns: Annotated[int, typer.Option("--max-turns", metavar="N", min=1, help="The most turns of a row.")] = 10,
    temperature: Annotated[
        float | None, typer.Option("--temperature", metavar="T", help="The sampling temperature.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", metavar="N", help="The most tokens of a reply.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Run at most N rows.")] = None,
    offset: Annotated[int, typer.Option("--offset", metavar="N", min=0, help="Skip the first N rows.")] = 0,
    row: Annotated[
        int | None, typer.Option("--row", metavar="N", min=0, help="Run only row N, from 0. With -i, begin there.")
    ] = None,
    interactive: Annotated[
        bool, typer.Option("-i", "--interactive", help="Stop before each chat, and ask what to do.")
    ] = False,
    columns: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="COLUMN=FIELD", help="What a column is, as question=user_prompt; repeatable."),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", metavar="N", min=1, max=10_000, help="Rows at once.")
    ] = 4,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, max=604_800, help="The most time of a row.")
    ] = 1800.0,
    price: Annotated[
        str | None,
        typer.Option("--price", metavar="P/R", help="Dollars for a million prompt and reply tokens, as 0.25/2."),
    ] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Write the results as JSON.")
    ] = None,
    save_dir: Annotated[
        str | None, typer.Option("--save-dir", metavar="DIR", help="The run's folder. Default: ./.osmosis/runs/TIME-ID")
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option("--replay", metavar="RUN", help="Reply from a run's folder, or from the `last` run. No model."),
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only the summary.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="A line for each row, also on a terminal.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show each row's conversation and the log.")] = False,
    config: ConfigFile = None,
    workflow_config: WorkflowConfig = None,
    grader_config: GraderConfig = None,
    grader: GraderClass = None,
    json: Json = False,
) -> None:
    """Run an agent loop over a dataset with a model, and keep the run in a folder.

    The model is asked once before the first row. Exit codes: 0 all rows completed, 1 some rows failed, 2 usage.
    """
    from osmosis_grpc.cli.agent_sources import SourceOptions
    from osmosis_grpc.cli.test import Options, run_test

    options = Options(
        module=module,
        sources=SourceOptions(
            config=config,
            workflow_config=tuple(workflow_config or ()),
            grader_config=tuple(grader_config or ()),
            grader=grader,
        ),
        dataset=dataset,
        model=model,
        api_key=api_key,
        base_url=base_url,
        max_turns=max_turns,
        temperature=temperature,
        max_tokens=max_tokens,
        limit=limit,
        offset=offset,
        row=row,
        interactive=interactive,
        output=output,
        save_dir=save_dir,
        replay=replay,
        columns=tuple(columns or ()),
        price=price,
        concurrency=concurrency,
        timeout=timeout,
        quiet=quiet,
        plain=plain,
        debug=debug,
        json=json,
    )
    raise typer.Exit(run_test(options))
