"""Declares the options of the commands that run an agent over a dataset. Imports only typer."""

from dataclasses import dataclass, fields
from typing import Annotated

import typer

from osmosis_grpc.cli.config_options import ConfigFile, GraderClass, GraderConfig, WorkflowConfig
from osmosis_grpc.cli.option_groups import with_options


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The agent, the dataset, the model, and how the rows run. Each field is an option of the command line."""

    module: Annotated[
        str | None,
        typer.Option("-m", "--module", "--agent", metavar="MODULE:ATTR", help="Agent loop or workflow.  [required]"),
    ] = None
    dataset: Annotated[
        str | None, typer.Option("-d", "--dataset", metavar="FILE", help=".json, .jsonl, .csv or .parquet.  [required]")
    ] = None
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="NAME",
            help="mock:echo, mock:tools, mock:script=FILE, litellm:NAME, vllm-grpc:HOST:PORT, smg:HOST:PORT, or a name "
            "of the server at --base-url.",
        ),
    ] = "gpt-5-mini"
    tokenizer: Annotated[
        str | None,
        typer.Option("--tokenizer", metavar="FOLDER", help="tokenizer.json and chat template, for a model over gRPC."),
    ] = None
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", metavar="URL", help="An OpenAI-compatible server. Default: OPENAI_BASE_URL"),
    ] = None
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key", metavar="KEY", help="Its key. Others see a command line: prefer the variable OPENAI_API_KEY."
        ),
    ] = None
    max_turns: Annotated[int, typer.Option("--max-turns", metavar="N", min=1, help="The most turns of a row.")] = 10
    temperature: Annotated[
        float | None, typer.Option("--temperature", metavar="T", help="The sampling temperature.")
    ] = None
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", metavar="N", help="The most tokens of a reply.")] = (
        None
    )
    pin_sampling: Annotated[
        bool,
        typer.Option("--pin-sampling", help="Use --temperature and --max-tokens even if the agent passes its own."),
    ] = False
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Run at most N rows.")] = None
    offset: Annotated[int, typer.Option("--offset", metavar="N", min=0, help="Skip the first N rows.")] = 0
    columns: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="COLUMN=FIELD", help="What a column is, as question=user_prompt; repeatable."),
    ] = None
    concurrency: Annotated[
        int, typer.Option("--concurrency", "--batch-size", metavar="N", min=1, max=10_000, help="The rollouts at once.")
    ] = 4
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, max=604_800, help="The most time of a rollout.")
    ] = 1800.0
    price: Annotated[
        str | None,
        typer.Option("--price", metavar="P/R", help="Dollars for a million prompt and reply tokens, as 0.25/2."),
    ] = None
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="FILE", help="Write the results as JSON.")] = (
        None
    )
    save_dir: Annotated[
        str | None, typer.Option("--save-dir", metavar="DIR", help="The run's folder. Default: ./.osmosis/runs/TIME-ID")
    ] = None
    replay: Annotated[
        str | None,
        typer.Option("--replay", metavar="RUN", help="Reply from a run's folder, or from the `last` run. No model."),
    ] = None
    config: ConfigFile = None
    workflow_config: WorkflowConfig = None
    grader_config: GraderConfig = None
    grader: GraderClass = None
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only the summary, and at most 10 failed rows.")] = False
    plain: Annotated[bool, typer.Option("--plain", help="A line for each rollout, also on a terminal.")] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show each rollout's conversation and the log.")] = False


with_run_options = with_options(RunOptions, "run")
"""Gives a command the options of RunOptions. The function gets them as its parameter `run`."""
_OF_MODELS = ("model", "tokenizer", "base_url", "api_key", "timeout", "save_dir")
with_model_options = with_options(
    RunOptions, "model", without=tuple(field.name for field in fields(RunOptions) if field.name not in _OF_MODELS)
)
"""Gives a command those options that say which model replies, for how long, and where the run is kept."""
