"""Declares the options of the commands that run an agent over a dataset. Imports only typer."""

from dataclasses import dataclass

from osmosis_grpc.cli.agent_sources import SourceOptions
from osmosis_grpc.cli.option_groups import choice, with_options


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(SourceOptions):
    """The agent, the dataset, the model, and how the rows run. Each field is an option of the command line."""

    module: str | None = choice("-m, --module, --agent MODULE:ATTR", "Agent loop or workflow.  [required]")
    dataset: str | None = choice("-d, --dataset FILE", ".json, .jsonl, .csv or .parquet.  [required]")
    model: str = choice(
        "--model NAME",
        "mock:echo, mock:tools, mock:script=FILE, litellm:NAME, vllm-grpc:HOST:PORT, smg:HOST:PORT, or a name "
        "of the server at --base-url.",
        "gpt-5-mini",
    )
    tokenizer: str | None = choice("--tokenizer FOLDER", "tokenizer.json and chat template, for a model over gRPC.")
    base_url: str | None = choice("--base-url URL", "An OpenAI-compatible server. Default: OPENAI_BASE_URL")
    api_key: str | None = choice(
        "--api-key KEY", "Its key. Others see a command line: prefer the variable OPENAI_API_KEY."
    )
    max_turns: int = choice("--max-turns N", "The most turns of a row.", 10, min=1)
    temperature: float | None = choice("--temperature T", "The sampling temperature.")
    max_tokens: int | None = choice("--max-tokens N", "The most tokens of a reply.")
    pin_sampling: bool = choice(
        "--pin-sampling", "Use --temperature and --max-tokens even if the agent passes its own.", False
    )
    limit: int | None = choice("--limit N", "Run at most N rows.", min=1)
    offset: int = choice("--offset N", "Skip the first N rows.", 0, min=0)
    columns: list[str] | None = choice("--map COLUMN=FIELD", "What a column is, as question=user_prompt; repeatable.")
    concurrency: int = choice("--concurrency, --batch-size N", "The rollouts at once.", 4, min=1, max=10_000)
    timeout: float = choice("--timeout SECONDS", "The most time of a rollout.", 1800.0, min=0.1, max=604_800)
    price: str | None = choice("--price P/R", "Dollars for a million prompt and reply tokens, as 0.25/2.")
    output: str | None = choice("-o, --output FILE", "Write the results as JSON.")
    save_dir: str | None = choice("--save-dir DIR", "The run's folder. Default: ./.osmosis/runs/TIME-ID")
    replay: str | None = choice("--replay RUN", "Reply from a run's folder, or from the `last` run. No model.")
    quiet: bool = choice("-q, --quiet", "Only the summary, and at most 10 failed rows.", False)
    plain: bool = choice("--plain", "A line for each rollout, also on a terminal.", False)
    debug: bool = choice("--debug", "Show each rollout's conversation and the log.", False)


with_run_options = with_options(RunOptions, "run")
"""Gives a command the options of RunOptions. The function gets them as its parameter `run`."""
