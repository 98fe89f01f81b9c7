"""Declares the options of the export command. Imports only typer."""

from dataclasses import dataclass
from typing import Annotated

import typer

from osmosis_grpc.cli.option_groups import with_options


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportChoices:
    """What to export, and how. Each field is an option of the command line."""

    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only these states, such as completed; may be repeated."),
    ] = None
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="Only this agent loop.")] = ""
    group: Annotated[str, typer.Option("--group", metavar="ID", help="Only this group.")] = ""
    min_reward: Annotated[
        float | None, typer.Option("--min-reward", metavar="X", help="Only rewards of at least this.")
    ] = None
    max_reward: Annotated[
        float | None, typer.Option("--max-reward", metavar="X", help="Only rewards of at most this.")
    ] = None
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=0, help="At most the N oldest; 0 exports all.")] = 0
    skip_untrainable: Annotated[
        bool,
        typer.Option(
            "--skip-untrainable", help="Leave out and count samples that cannot be trained on, and damaged rollouts."
        ),
    ] = False
    prompt_length: Annotated[
        int | None, typer.Option("--prompt-length", metavar="N", min=1, help="verl's rollout.prompt_length.")
    ] = None
    response_length: Annotated[
        int | None, typer.Option("--response-length", metavar="N", min=1, help="verl's rollout.response_length.")
    ] = None
    too_long: Annotated[
        str, typer.Option("--too-long", metavar="CHOICE", help="raise, skip, or truncate for longer segments (verl).")
    ] = "raise"
    cut: Annotated[
        str,
        typer.Option(
            "--cut", metavar="CHOICE", help="train, mask, or skip for samples that a limit has cut (verl, parquet)."
        ),
    ] = "train"
    dropped: Annotated[
        str,
        typer.Option(
            "--dropped", metavar="CHOICE", help="skip or train for replies that the agent dropped (verl, parquet)."
        ),
    ] = "skip"
    no_reward_components: Annotated[
        bool, typer.Option("--no-reward-components", help="Leave out the named parts of rewards (verl).")
    ] = False
    extra: Annotated[
        list[str] | None,
        typer.Option(
            "--extra", metavar="NAME", help="Take this extra along, such as routed_experts (verl); repeatable."
        ),
    ] = None
    pad_id: Annotated[
        int | None, typer.Option("--pad-id", metavar="ID", min=0, help="The tokenizer's pad_token_id (verl-batch).")
    ] = None
    batch_size: Annotated[
        int, typer.Option("--batch-size", metavar="N", min=1, help="Rows of a padded batch (verl-batch).")
    ] = 256
    global_steps: Annotated[
        int | None, typer.Option("--global-steps", metavar="N", min=0, help="The trainer's step (verl-records).")
    ] = None
    no_tokens: Annotated[bool, typer.Option("--no-tokens", help="No token ids and logprobs (atif).")] = False


with_choices = with_options(ExportChoices, "choices")
"""Gives a command the options of ExportChoices. The function gets them as its parameter `choices`."""
