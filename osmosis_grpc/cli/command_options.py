"""The options of commands with many options, one dataclass for each command. Imports only typer."""

from dataclasses import dataclass, fields

from osmosis_grpc.cli.options import NAME, AgentSources, choice, with_options


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(AgentSources):
    """The agent, the dataset, the model, and how the rows run. Each field is an option of the command line."""

    unnamed: tuple[str, ...] = choice(" -m MODULE:ATTR -d FILE", "", (), hidden=True)
    module: str | None = choice(
        "-m, --module, --agent MODULE:ATTR", "Agent loop or workflow. Give this, --env or --command."
    )
    env: str | None = choice("--env KIND:NAME", "Environment of another library, instead of an agent loop.")
    command: str | None = choice("--command COMMAND", "A program as the agent, as in serve --command.")
    dataset: str | None = choice(
        "-d, --dataset FILE", ".json, .jsonl, .csv, .parquet, tasks, or env:KIND:NAME. Default: the tasks of --env."
    )
    model: str = choice(
        "--model NAME",
        "mock:echo, mock:tools, mock:script=FILE, litellm:NAME, vllm-grpc:HOST:PORT, vllm-http:HOST:PORT, "
        "smg:HOST:PORT, or a name of the server at --base-url.",
        "gpt-5-mini",
    )
    tokenizer: str | None = choice(
        "--tokenizer FOLDER", "tokenizer.json and chat template, for vllm-grpc: and vllm-http:."
    )
    base_url: str | None = choice("--base-url URL", "An OpenAI-compatible server. Default: OPENAI_BASE_URL")
    api_key: str | None = choice(
        "--api-key KEY", "Its key. Others see a command line: prefer the variable OPENAI_API_KEY."
    )
    max_turns: int = choice("--max-turns N", "Limit of turns of a row.", 10, min=1)
    temperature: float | None = choice("--temperature T", "The sampling temperature.")
    max_tokens: int | None = choice("--max-tokens N", "Limit of tokens of a reply.")
    pin_sampling: bool = choice(
        "--pin-sampling", "Use --temperature and --max-tokens even if the agent passes its own.", False
    )
    limit: int | None = choice("--limit N", "Run at most N rows.", min=1)
    offset: int = choice("--offset N", "Skip the first N rows.", 0, min=0)
    columns: list[str] | None = choice(
        "--map COLUMN=FIELD", "The field that a column has, such as question=user_prompt; repeatable."
    )
    concurrency: int = choice("--concurrency, --batch-size N", "The rollouts at once.", 4, min=1, max=10_000)
    timeout: float = choice("--timeout SECONDS", "Time limit of a rollout.", 1800.0, min=0.1, max=604_800)
    price: str | None = choice("--price P/R", "Dollars per million prompt and reply tokens, such as 0.25/2.")
    output: str | None = choice("-o, --output FILE", "Write the results as JSON.")
    save_dir: str | None = choice("--save-dir DIR", "The run's folder. Default: ./.osmosis/runs/TIME-ID")
    replay: str | None = choice("--replay RUN", "Use the replies of a run, or of the `last` one, instead of a model.")
    quiet: bool = choice("-q, --quiet", "Print only the summary, and at most 10 failed rows.", False)
    plain: bool = choice("--plain", "Print a line for each rollout, even on a terminal.", False)
    debug: bool = choice("--debug", "Show each rollout's conversation and the log.", False)


with_run_options = with_options(RunOptions, "run")
"""Adds the options of RunOptions to a command. The function gets them as its parameter `run`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportChoices:
    """What to export, and how. Each field is an option of the command line."""

    to: str = choice(
        "--to FORMAT", "messages, atif, parquet, verl, verl-batch or verl-records.", ..., show_default=False
    )
    output: str | None = choice(
        "-o, --output PATH", "A file or folder, or - for stdout. Default: named after the format."
    )
    overwrite: bool = choice("--overwrite", "Replace an earlier export.", False)
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
        "--dropped CHOICE", "skip, or train for replies that the agent dropped (verl, parquet).", "skip"
    )
    no_reward_components: bool = choice("--no-reward-components", "Leave out the named parts of rewards (verl).", False)
    extra: list[str] | None = choice(
        "--extra NAME", "Also export this extra, such as routed_experts (verl); repeatable."
    )
    pad_id: int | None = choice("--pad-id ID", "The tokenizer's pad_token_id (verl-batch).", min=0)
    batch_size: int = choice("--batch-size N", "Rows of a padded batch (verl-batch).", 256, min=1)
    global_steps: int | None = choice("--global-steps N", "The trainer's step (verl-records).", min=0)
    no_tokens: bool = choice("--no-tokens", "No token ids and logprobs (atif).", False)


with_choices = with_options(ExportChoices, "choices")
"""Adds the options of ExportChoices to a command. The function gets them as its parameter `choices`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The options that only test or only eval has."""

    command: str = ""
    json: bool = False
    row: int | None = choice("--row N", "Run only row N, from 0. With -i, begin there.", min=0)
    interactive: bool = choice("-i, --interactive", "Stop before each chat, and ask what to do.", False)
    eval_fn: tuple[str, ...] = choice(
        "--eval-fn MODULE:FUNCTION", "A function that scores; repeatable. Default: the agent's reward.", ()
    )
    n: int = choice("--n N", "Run each row N times, for pass@k.", 1, min=1, max=1000)
    pass_threshold: float = choice("--pass-threshold X", "A score of at least X passes.", 1.0)
    rows: str | None = choice("--rows LIST", "Only these rows, from 0, as 3,7,10-20.")
    resume: str | None = choice("--resume RUN", "Continue a run, or the `last` one, with its options.")
    fresh: bool = choice("--fresh", "Begin again. The old results are moved to RUN.archive-TIME.", False)
    retry_failed: bool = choice("--retry-failed", "Also run the rows again that failed in the earlier run.", False)


_OF_TEST = ("row", "interactive")
_OF_BOTH = ("command", "json")
with_test_choices = with_options(
    Choices, "choices", without=tuple(each.name for each in fields(Choices) if each.name not in _OF_TEST)
)
"""Adds the options of test to a command. The function gets them as its parameter `choices`."""
with_eval_choices = with_options(Choices, "choices", without=(*_OF_BOTH, *_OF_TEST))
"""Adds the options of eval to a command, in the same way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoreOptions:
    """The rollouts that rescore scores, and the functions or the grader that score them."""

    eval_fn: tuple[str, ...] = choice("--eval-fn MODULE:FUNCTION", "A function that scores; repeatable.", ())
    grader: str | None = choice("--grader MODULE:CLASS", "A grader that scores.")
    grader_config: tuple[str, ...] = choice(
        "--grader-config KEY=VALUE", "A value of the grader's configuration; repeatable.", ()
    )
    author: str = choice("--author NAME", "The author of the annotations.", "rescore")
    agent: str = choice("--agent NAME", "Only this agent loop.", "")
    group: str = choice("--group ID", "Only this group.", "")
    concurrency: int = choice("--concurrency N", "The rollouts at once.", 4, min=1, max=1000)
    timeout: float = choice("--timeout SECONDS", "Time limit of a score.", 1800.0, min=0.1, max=604_800)
    quiet: bool = choice("-q, --quiet", "Only failed scores and the summary.", False)


with_rescore = with_options(RescoreOptions, "options")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The rollouts that replay runs again, and their agent loops."""

    rollout: str | None = choice("[ROLLOUT]", NAME)
    module: tuple[str, ...] = choice("-m, --module MODULE:ATTR", "Its agent loop; may be repeated.  [required]", ())
    until_turn: int | None = choice("--until-turn N", "Stop after N chats.", min=1)
    attempt: int | None = choice("--attempt N", "Which attempt. Default: the newest.", min=1)
    all: bool = choice("--all", "Every rollout, instead of ROLLOUT.", False)
    state: tuple[str, ...] = choice("--state STATE", "With --all: only these states, such as failed; repeatable.", ())
    agent: str = choice("--agent NAME", "With --all: only this agent loop.", "")
    group: str = choice("--group ID", "With --all: only this group.", "")
    since: str | None = choice("--since TIME", "With --all: accepted in the last 10m, 2h, 1d.")
    before: str | None = choice("--before TIME", "With --all: accepted longer ago than 10m, 2h, 1d.")
    limit: int = choice("--limit N", "With --all: the N newest; 0 replays all.", 0, min=0)
    concurrency: int = choice("--concurrency N", "With --all: the rollouts at once.", 4, min=1, max=1000)
    timeout: float = choice("--timeout SECONDS", "With --all: limit of a rollout.", 1800.0, min=0.1, max=604_800)


with_replay = with_options(ReplayOptions, "options")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkOptions:
    """The chat from which a fork runs, the process that runs it, and the model that replies."""

    rollout: str = choice("ROLLOUT", NAME, ...)
    at_chat: int = choice("--at-chat N", "The last chat whose recorded reply is used.", ..., min=1)
    sample: str = choice("--sample NAME", "The sample of this chat.", "main")
    attempt: int | None = choice("--attempt N", "Which attempt. Default: the newest.", min=1)
    module: tuple[str, ...] = choice("-m, --module MODULE:ATTR", "Run its agent loop here; may be repeated.", ())
    model: str = choice("--model NAME", "The model for later chats, as in test --model.", "gpt-5-mini")
    tokenizer: str | None = choice(
        "--tokenizer FOLDER", "tokenizer.json and chat template, for vllm-grpc: and vllm-http:."
    )
    base_url: str | None = choice("--base-url URL", "An OpenAI-compatible server. Default: OPENAI_BASE_URL")
    api_key: str | None = choice(
        "--api-key KEY", "Its key. Others see a command line: prefer the variable OPENAI_API_KEY."
    )
    timeout: float = choice("--timeout SECONDS", "Time limit, with -m.", 1800.0, min=0.1, max=604_800)
    save_dir: str | None = choice("--save-dir DIR", "The run's folder, with -m. Default: ./.osmosis/runs/TIME-ID")


with_fork = with_options(ForkOptions, "options")


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOptions:
    """The page that view opens first, and the address where it listens."""

    demo: bool = choice("--demo", "Run twelve rollouts with a mock model, and show them.", False)
    rollout: str | None = choice("--rollout ROLLOUT", "Open this rollout first; if it failed, at the turn that failed.")
    host: str = choice("--host HOST", "Listen on this host. Other machines need a token.", "127.0.0.1")
    port: int | None = choice("--port PORT", "Default: 7700 if it is free.", min=0, max=65535, show_default=False)
    token: str | None = choice("--token SECRET", "Token that browsers have to send. Prefer the file.")
    token_file: str | None = choice("--token-file FILE", "File that holds --token.")
    server_token_file: str | None = choice("--server-token-file FILE", "File with the token to send to the server.")
    metrics: str | None = choice(
        "--metrics HOST:PORT", "With a server: also read the page /metrics of the server there.", show_default=False
    )
    tokenizer: str | None = choice(
        "--tokenizer FOLDER", "Show tokens as text: the folder of a model with tokenizer.json."
    )
    open: bool = choice("--open", "Open the page in a browser.", False)
    export: str | None = choice("--export OUT", "Write the pages to this new folder, and end.", show_default=False)
    single_file: bool = choice("--single-file", "With --export: write one HTML file of at most 20 MB.", False)
    limit: int = choice("--limit N", "Show or export at most N; 0 exports all.", 0, min=0)


with_view = with_options(ViewOptions, "options")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """A query, the folder that it reads, and the format of the rows."""

    sql: str | None = choice("SQL", "One SELECT; - reads it from stdin. Without it, list the views.")
    file: str | None = choice("--file FILE", "Read the SELECT from a file.")
    where: str | None = choice(
        "--from WHERE",
        "A run (last, or the beginning of its name) or a folder; a server may be using it. "
        "Default: the newest of ./.osmosis.",
    )
    csv: bool = choice("--csv", "Print CSV with a header.", False)
    limit: int | None = choice(
        "--limit N", "Print at most N rows; 0 prints all. Default: 100 in a table, else all.", min=0
    )
    timeout: float = choice("--timeout SECONDS", "Give up after this many seconds.", 60.0, min=0.001)


with_query = with_options(QueryOptions, "options")


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelOptions:
    """The rollouts to cancel: by id, by group, by a prefix of their ids, or all rollouts of the caller."""

    rollouts: tuple[str, ...] = choice("ROLLOUT", "Ids of rollouts.", ())
    group: str = choice("--group ID", "All unfinished rollouts of this group.", "")
    prefix: str = choice("--prefix TEXT", "All unfinished rollouts whose ids begin with this text.", "")
    everything: bool = choice("--all", "All unfinished rollouts of the token's owner.", False)
    attempt: int | None = choice("--attempt N", "The highest attempt to cancel. Default: any.", min=1)
    reason: str = choice("--reason TEXT", "The server records it.", "")


with_cancel = with_options(CancelOptions, "options")
