"""Rollouts for TRL's GRPOTrainer: its `rollout_func` and its reward. Needs the extra `trl`.

    rollouts = TrlRollouts(["127.0.0.1:50051"], label="answer")
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, args=args, train_dataset=dataset,
        rollout_func=rollouts, reward_funcs=outcome_reward,
    )
    with rollouts:
        trainer.train()

TRL 1.16 takes exactly one row for each prompt:

- If the rollout has one segment, the row has exactly its tokens.
- If it has several segments, the row has the one with the most sampled tokens. The others are counted, and a warning
  says why they exist.
- If it failed or has no exact tokens, the row has one token with mask 0 and no reward. TRL leaves such rows out of the
  mean of the group.
"""

import hashlib
import json
import logging
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from osmosis_grpc.integrations._one_row import OneRow, one_row
from osmosis_grpc.policies import ChatRenderer, EchoPolicy, Renderer, TokenPolicy, renderer_of
from osmosis_grpc.policies.transformers import TransformersGenerator
from osmosis_grpc.protocol.errors import FailedPrecondition, InvalidArgument
from osmosis_grpc.protocol.types import Group
from osmosis_grpc.protocol.types.json_values import text_of
from osmosis_grpc.protocol.types.samples import Cut, Dropped, check_choices
from osmosis_grpc.trainer import RolloutOutcome, RolloutRequest, SyncTrainer, Trainer
from osmosis_grpc.trainer.chats.policy_table import Policies

if TYPE_CHECKING:
    from trl import GRPOTrainer

__all__ = ["TrlRollouts", "outcome_reward"]

log = logging.getLogger(__name__)

START_TIMEOUT = 20.0
"""How many seconds the first call waits for an agent server."""
Prompt = str | list[dict[str, Any]]
"""A prompt of TRL's dataset: a text, or messages."""


class TrlRollouts:
    """Runs the rollouts of a GRPOTrainer on agent servers. Pass it as `rollout_func`.

    The first call connects to the servers. close(), or the end of a `with` block, ends the connections. Raises the
    errors of Trainer for invalid arguments, for example ValueError for a server that is not HOST:PORT.

    Args:
        servers: The agent servers, each HOST:PORT.
        policy: Answers the chats; by default the model of the GRPOTrainer, in this process.
        renderer: Renders the prompts of the GRPOTrainer's model and reads its replies. Pass a renderer, or the name of
            the model, such as "Qwen/Qwen3-8B", for the renderer of its family (renderer_of). By default, the chat
            template of the tokenizer is used. Refused with `policy`, which has its own renderer.
        label: The column of the dataset that becomes the label of a request. TRL passes only the prompts, by which the
            rows are then found, so rows with the same prompt must have the same values.
        metadata: The columns that become the metadata of a request.
        fields: Fields of every RolloutRequest, for example {"agent_loop": "calculator", "max_turns": 4}.
        retries: How often a failed rollout is repeated.
        cut: As in pad().
        dropped: As in pad().
        max_in_flight: How many rollouts may run at once.
        **options: The options of Trainer, for example `credentials`.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        policy: Policies | None = None,
        renderer: Renderer | str = "",
        label: str = "",
        metadata: Sequence[str] = (),
        fields: Mapping[str, Any] | None = None,
        retries: int = 1,
        cut: Cut = "train",
        dropped: Dropped = "skip",
        max_in_flight: int = 256,
        **options: Any,
    ) -> None:
        if isinstance(metadata, str):
            raise TypeError(f"metadata: is a str; pass the names of columns, for example [{metadata!r}]")
        self._servers = [servers] if isinstance(servers, str) else list(servers)
        Trainer(self._servers, EchoPolicy() if policy is None else policy, **options)  # checks the arguments
        if policy is not None and renderer:
            raise TypeError("renderer: is not read with policy; give the renderer to the policy")
        self._policy = policy
        self._renderer = renderer
        self._columns = [*([label] if label else []), *metadata]
        self._label = label
        self._fields = dict(fields or {})
        self._retries = retries
        check_choices(cut, dropped)
        self._one_row = partial(one_row, cut=cut, dropped=dropped)
        self._max_in_flight = max_in_flight
        self._options = options
        self._trainer: SyncTrainer | None = None
        self._values: dict[bool, dict[bytes, dict[str, Any]]] = {}
        self._name = ""
        self._calls = 0
        self._warned = False
        self.outcomes: tuple[RolloutOutcome, ...] = ()
        """The outcomes of the newest call, in the order of its prompts."""
        self.counts: Counter[str] = Counter()
        """Since the start: `rollouts`, `failed` (rollouts without a trainable row), and `segments_left_out` and
        `tokens_left_out` (trainable, but TRL has no row for them)."""

    def __enter__(self) -> "TrlRollouts":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connections to the servers. Idempotent."""
        trainer, self._trainer = self._trainer, None
        if trainer is not None:
            trainer.close()

    def __call__(self, prompts: list[Prompt], trainer: "GRPOTrainer") -> dict[str, list[Any]]:
        """Run one rollout for each prompt, and return TRL's columns with one row for each.

        Besides `prompt_ids`, `completion_ids`, `logprobs` and `env_mask`, the columns are `rollout_reward` (None for a
        row without a reward), `rollout_id`, `rollout_status`, `rollout_reward_components`, `rollout_messages`,
        `rollout_segments_left_out` and `rollout_tokens_left_out`. Reward functions get them as arguments.

        Raises FailedPrecondition if no rollout can be trained on, Unavailable if no agent server answers, and
        InvalidArgument for a dataset without the columns.
        """
        evaluation = not trainer.model.training
        requests = self._requests(prompts, trainer, evaluation)
        with sampling_mode(trainer):
            self.outcomes = self._run(requests, trainer)
        return self._rows(trainer)

    def _requests(self, prompts: list[Prompt], trainer: Any, evaluation: bool) -> list[RolloutRequest]:
        size = trainer.num_generations_eval if evaluation else trainer.num_generations
        first = trainer.accelerator.process_index * len(prompts)
        self._name = self._name or _shared(f"trl-{uuid.uuid4().hex[:8]}")
        self._calls += 1
        call = f"{self._name}-{trainer.state.global_step}-{self._calls}"
        requests = []
        for position, prompt in enumerate(prompts, first):
            group, index = f"{call}-{position // size}", position % size
            requests.append(
                RolloutRequest(
                    **{
                        "rollout_id": f"{group}-{index}",
                        "group": Group(group, index, size),
                        "messages": _messages(prompt),
                        "completion_params": sampling_params(trainer),
                        "max_tokens_total": trainer.max_completion_length,
                        "evaluation": evaluation,
                        **self._of_row(prompt, trainer, evaluation),
                        **self._fields,
                    }
                )
            )
        return requests

    def _of_row(self, prompt: Prompt, trainer: Any, evaluation: bool) -> dict[str, Any]:
        if not self._columns:
            return {}
        if evaluation not in self._values:
            name = "eval_dataset" if evaluation else "train_dataset"
            self._values[evaluation] = _values_by_prompt(name, getattr(trainer, name), self._columns)
        values = self._values[evaluation].get(_digest(prompt))
        if values is None:
            raise InvalidArgument("prompts", f"no row of the dataset has this prompt: {prompt!r:.200}")
        label = values.get(self._label)
        return {
            "label": text_of(label, "label"),
            "metadata": {name: value for name, value in values.items() if name != self._label},
        }

    def _run(self, requests: list[RolloutRequest], trainer: Any) -> tuple[RolloutOutcome, ...]:
        """Return the outcomes in the order of the requests."""
        if self._trainer is None:
            policy = model_policy(trainer, self._renderer) if self._policy is None else self._policy
            self._trainer = SyncTrainer(self._servers, policy, **self._options).open()
            try:
                self._trainer.wait_for_server(START_TIMEOUT)
            except BaseException:
                self.close()
                raise
        self._trainer.resume(version=trainer.state.global_step)
        ended = self._trainer.run(requests, retries=self._retries, max_in_flight=self._max_in_flight)
        outcomes = {outcome.rollout_id: outcome for outcome in ended}
        return tuple(outcomes[request.rollout_id] for request in requests)

    def _rows(self, trainer: Any) -> dict[str, list[Any]]:
        outcomes, rows, failures = self.outcomes, [], []
        for outcome in outcomes:
            try:
                rows.append(self._one_row(outcome))
            except InvalidArgument as error:
                rows.append(_untrained(trainer.processing_class))
                failures.append(str(error))
        self._count(rows, failures)
        return {
            "prompt_ids": [row.prompt_ids for row in rows],
            "completion_ids": [row.response_ids for row in rows],
            "logprobs": [row.response_logprobs for row in rows],
            "env_mask": [row.response_mask for row in rows],
            "rollout_reward": [row.reward if row.sample else None for row in rows],
            "rollout_id": [outcome.rollout_id for outcome in outcomes],
            "rollout_status": [outcome.status.value for outcome in outcomes],
            "rollout_reward_components": [dict(outcome.reward_components) for outcome in outcomes],
            "rollout_messages": [list(outcome.messages) for outcome in outcomes],
            "rollout_segments_left_out": [row.segments_left_out for row in rows],
            "rollout_tokens_left_out": [row.tokens_left_out for row in rows],
        }

    def _count(self, rows: list[OneRow], failures: list[str]) -> None:
        left_out = [(outcome, row) for outcome, row in zip(self.outcomes, rows, strict=True) if row.segments_left_out]
        self.counts["rollouts"] += len(rows)
        self.counts["failed"] += len(failures)
        self.counts["segments_left_out"] += sum(row.segments_left_out for row in rows)
        self.counts["tokens_left_out"] += sum(row.tokens_left_out for row in rows)
        if len(failures) == len(rows):
            raise FailedPrecondition(f"none of {len(rows)} rollouts can be trained on. {failures[0]}")
        if failures:
            log.warning(
                "%d of %d rollouts have no reward and are not trained on. %s", len(failures), len(rows), failures[0]
            )
        if left_out and not self._warned:
            self._warned = True
            outcome, row = left_out[0]
            log.warning(
                "rollout %s has %d segments, and TRL trains on one: %d sampled tokens are left out. A new segment "
                "begins where a prompt does not continue the earlier tokens, and with each further sample. The metric "
                "rollouts/tokens_left_out counts all of them.",
                outcome.rollout_id,
                row.segments_left_out + 1,
                row.tokens_left_out,
            )


def outcome_reward(rollout_reward: list[float | None], **columns: Any) -> list[float | None]:
    """Return the rewards of the outcomes, None for failed rollouts. This is a reward function for TRL.

    Logs the metrics `rollouts/failed`, `rollouts/segments_left_out` and `rollouts/tokens_left_out`.

    Args:
        rollout_reward: The column of TrlRollouts.
        **columns: The other columns, including those that TRL adds.
    """
    log_metric = columns.get("log_metric")
    if log_metric is not None:
        log_metric("rollouts/failed", float(sum(reward is None for reward in rollout_reward)))
        for name in ("segments_left_out", "tokens_left_out"):
            log_metric(f"rollouts/{name}", float(sum(columns.get(f"rollout_{name}", ()))))
    return rollout_reward


def _untrained(processing_class: Any) -> OneRow:
    """Return a row without training signal, with the one token that TRL needs."""
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    return OneRow(
        prompt_ids=[tokenizer.eos_token_id],
        response_ids=[tokenizer.eos_token_id],
        response_mask=[0],
        response_logprobs=[0.0],
        sample="",
        reward=0.0,
        segments_left_out=0,
        tokens_left_out=0,
    )


def _shared(name: str) -> str:
    """Return the name that process 0 passes, in all processes, because a group may span several of them."""
    names = [name]
    import_module("accelerate.utils").broadcast_object_list(names)
    return names[0]


def _messages(prompt: Prompt) -> list[dict[str, Any]]:
    """Return a prompt as messages, without the None values that a dataset adds."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [{key: value for key, value in each.items() if value is not None or key == "content"} for each in prompt]


def _digest(prompt: Prompt) -> bytes:
    return hashlib.blake2b(json.dumps(prompt, sort_keys=True, default=str).encode(), digest_size=16).digest()


def _values_by_prompt(name: str, dataset: Any, columns: Sequence[str]) -> dict[bytes, dict[str, Any]]:
    """Return the values of columns, by digest of the prompt. Raises InvalidArgument naming the dataset."""
    found: dict[bytes, dict[str, Any]] = {}
    datasets: Iterable[Any] = dataset.values() if isinstance(dataset, Mapping) else [dataset]
    for each in datasets:
        if not hasattr(each, "__getitem__"):
            raise InvalidArgument(name, f"is a {type(each).__name__}; label and metadata need a dataset with a length")
        missing = [column for column in columns if column not in each.column_names]
        if missing:
            listed = ", ".join(each.column_names)
            raise InvalidArgument(name, f"has no column {missing[0]!r}; its columns are: {listed}")
        for number, (prompt, *values) in enumerate(
            zip(*(each[column] for column in ["prompt", *columns]), strict=True)
        ):
            row = dict(zip(columns, values, strict=True))
            if found.setdefault(_digest(prompt), row) != row:
                raise InvalidArgument(
                    name, f"row {number} has the prompt of an earlier row and another {' or '.join(columns)}"
                )
    return found


BATCH = 64
"""The most chats that the model answers in one batch."""
_NEUTRAL = {"top_k": 0, "min_p": None, "repetition_penalty": 1.0}
"""Sampling parameters of TRL, with their neutral values."""


def sampling_params(trainer: "GRPOTrainer") -> dict[str, Any]:
    """Return the sampling parameters of a GRPOConfig, under the names of OpenAI and vLLM.

    The limit for a completion becomes the limit for a single reply.
    """
    params = {"temperature": trainer.temperature, "top_p": trainer.top_p, "max_tokens": trainer.max_completion_length}
    return params | {
        name: value for name, neutral in _NEUTRAL.items() if (value := getattr(trainer, name)) not in (neutral, None)
    }


def model_policy(trainer: "GRPOTrainer", renderer: Renderer | str = "") -> TokenPolicy:
    """Return a policy that samples from the trainer's model. Raises FailedPrecondition if the model is sharded."""
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or trainer.use_vllm:
        raise FailedPrecondition(
            "the model of the trainer is not whole in this process (FSDP, DeepSpeed or use_vllm); "
            "pass policy=, for example OpenAIPolicy(URL, MODEL) or a TokenPolicy"
        )
    model = trainer.accelerator.unwrap_model(trainer.model)
    if not renderer:
        renderer = ChatRenderer(trainer.processing_class)
    elif isinstance(renderer, str):
        renderer = renderer_of(getattr(trainer.processing_class, "tokenizer", trainer.processing_class), renderer)
    return TokenPolicy(renderer, TransformersGenerator(model, trainer.processing_class, batch=BATCH))


@contextmanager
def sampling_mode(trainer: "GRPOTrainer") -> Iterator[None]:
    """Put the model into evaluation mode, without dropout and without gradient checkpointing, which has no cache."""
    model = trainer.model
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
