"""Declares the options of the export command. Imports only typer."""

from dataclasses import dataclass

from osmosis_grpc.cli.option_groups import choice, with_options


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
