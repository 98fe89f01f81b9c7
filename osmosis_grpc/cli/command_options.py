"""The options of single commands that have many of them. Imports only typer."""

from dataclasses import dataclass

from osmosis_grpc.cli.options import AgentSources, choice, with_options


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(AgentSources):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportChoices:
    """What to export, and how. Each field is an option of the command line."""

    state: list[str] | None = choice("--state STATE", "Only these states, such as completed; may be repeated.")
    agent: str = choice("--agent NAME", "Only this agent loop.", "")
    group: str = choice("--group ID", "Only this group.", "")
    min_reward: float | None = choice("--min-reward X", "Only rewards of at least this.")
    max_reward: float | None = choice("--max-reward X", "Only rewards of at most this.")
    limit: int = choice("--limit N", "At most the N oldest; 0 exports all.", 0, min=0)
    skip_untrainable: bool = choice(
        "--skip-untrainable", "Leave out and count samples that cannot be trained on, and damaged rollouts.", False
    )
    prompt_length: int | None = choice("--prompt-length N", "verl's rollout.prompt_length.", min=1)
    response_length: int | None = choice("--response-length N", "verl's rollout.response_length.", min=1)
    too_long: str = choice("--too-long CHOICE", "raise, skip, or truncate for longer segments (verl).", "raise")
    cut: str = choice("--cut CHOICE", "train, mask, or skip for samples that a limit has cut (verl, parquet).", "train")
    dropped: str = choice(
        "--dropped CHOICE", "skip or train for replies that the agent dropped (verl, parquet).", "skip"
    )
    no_reward_components: bool = choice("--no-reward-components", "Leave out the named parts of rewards (verl).", False)
    extra: list[str] | None = choice(
        "--extra NAME", "Take this extra along, such as routed_experts (verl); repeatable."
    )
    pad_id: int | None = choice("--pad-id ID", "The tokenizer's pad_token_id (verl-batch).", min=0)
    batch_size: int = choice("--batch-size N", "Rows of a padded batch (verl-batch).", 256, min=1)
    global_steps: int | None = choice("--global-steps N", "The trainer's step (verl-records).", min=0)
    no_tokens: bool = choice("--no-tokens", "No token ids and logprobs (atif).", False)


with_choices = with_options(ExportChoices, "choices")
"""Gives a command the options of ExportChoices. The function gets them as its parameter `choices`."""
