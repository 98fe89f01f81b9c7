"""An agent loop for verl whose agent runs on an agent server. Needs the extra `verl`.

Configure it in the file that `actor_rollout_ref.rollout.agent.agent_loop_config_path` names:

    - name: osmosis_grpc
      _target_: osmosis_grpc.integrations.verl.OsmosisAgentLoop
      servers: ["127.0.0.1:50051"]

The policy is verl's own `server_manager.generate`, which takes and returns token ids. verl creates a new loop object
for each trajectory, so all loops of a process share one Trainer.
"""

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from osmosis_grpc.integrations._shared_trainer import SharedTrainers
from osmosis_grpc.policies import (
    ChatRenderer,
    FinishReason,
    Generated,
    GenerateRequest,
    Policy,
    Renderer,
    TokenPolicy,
    TokenPolicyConfig,
    renderer_of,
)
from osmosis_grpc.policies.sampling import refuse
from osmosis_grpc.protocol.errors import FailedPrecondition, InvalidArgument, MissingExtraError
from osmosis_grpc.protocol.types import Group
from osmosis_grpc.protocol.types.json_values import text_of, to_json
from osmosis_grpc.protocol.types.samples import Cut, Dropped
from osmosis_grpc.records.export import VerlConfig, agent_loop_outputs
from osmosis_grpc.trainer import ChatRequest, ChatResponse, RolloutRequest, TokenBlock, Trainer

try:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput
except ImportError as error:
    raise MissingExtraError("OsmosisAgentLoop", "verl") from error

__all__ = ["OsmosisAgentLoop", "close_trainers", "left_out"]

log = logging.getLogger(__name__)

_RUN = uuid.uuid4().hex[:8]
"""A part of the ids of all rollouts of this process."""
_STEPS = ("min_global_steps", "max_global_steps")
_ABORTED = ("aborted", "abort")
"""The stop reasons of a reply that verl cut off, for example for new weights."""

left_out: Counter[str] = Counter()
"""Counts the `segments` of this process for which V0 of verl has no row, and the sampled `tokens` in them."""


class ServerManagerGenerator:
    """Samples from verl's `server_manager`. The session id, ROLLOUT/SAMPLE, keeps a conversation on one server."""

    def __init__(self, server_manager: Any) -> None:
        self._server_manager = server_manager

    async def generate(self, request: GenerateRequest, /) -> Generated:
        """Return the sampled tokens. Raises InvalidArgument for prompts with images, and unsupported parameters."""
        if request.media:
            raise InvalidArgument("messages", "have an image; the adapter for verl sends text only")
        refuse(request.sampling, _UNSUPPORTED, "the adapter for verl")
        given = {name: value for name in _SAMPLING if (value := getattr(request.sampling, name)) not in (None, (), "")}
        output = await self._server_manager.generate(
            request.session_id,
            prompt_ids=request.prompt_ids.tolist(),
            sampling_params={**given, "logprobs": True},
            priority=request.priority,
        )
        block = TokenBlock.of(np.array(output.token_ids, dtype=np.int64), output.log_probs or None)
        step = output.extra_fields.get("global_steps")
        reason = FinishReason.LENGTH if len(block.ids) >= request.sampling.max_tokens else FinishReason.STOP
        return Generated(
            token_ids=block.ids,
            logprobs=block.logprobs,
            finish_reason=FinishReason.ABORTED if output.stop_reason in _ABORTED else reason,
            weight_version="" if step is None else str(step),
        )

    async def abort(self, request_id: str, /) -> None:
        """Do nothing: verl has no call that stops one request."""


_UNSUPPORTED = ("json_schema", "regex", "grammar", "min_tokens", "bad_words", "logit_bias", "allowed_token_ids")
_SAMPLING = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


_TRAINERS = SharedTrainers()
_POLICIES: "WeakKeyDictionary[asyncio.AbstractEventLoop, TokenPolicy]" = WeakKeyDictionary()
"""The policy of each event loop, which all agent loops share, as they have the same server manager and tokenizer."""


class OsmosisAgentLoop(AgentLoopBase):
    """Runs one rollout for each trajectory. Override make_trainer() to set credentials, for example.

    Args:
        servers: The agent servers, each HOST:PORT.
        renderer: The name of the model, such as "Qwen/Qwen3-8B", for the renderer of its family (renderer_of). Empty
            for the chat template of verl's tokenizer.
        label: The column of the dataset that becomes the label of a request, or a dotted path into a column.
        metadata: The columns that become the metadata of a request.
        fields: Fields of every RolloutRequest, for example {"agent_loop": "calculator", "max_turns": 4}.
        retries: How often a failed rollout is repeated.
        cut: As in VerlConfig.
        dropped: As in VerlConfig.
        **verl: The arguments that verl passes.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        renderer: str = "",
        label: str = "reward_model.ground_truth",
        metadata: Sequence[str] = (),
        fields: Mapping[str, Any] | None = None,
        retries: int = 1,
        cut: Cut = "train",
        dropped: Dropped = "skip",
        **verl: Any,
    ) -> None:
        super().__init__(**verl)
        self._servers = (servers,) if isinstance(servers, str) else tuple(servers)
        self._renderer = renderer
        self._label = label
        self._metadata = tuple(metadata)
        self._fields = to_json(fields or {}, "fields")
        self._retries = retries
        rollout = self.rollout_config
        if rollout.get("enable_rollout_routing_replay", False):
            raise InvalidArgument("enable_rollout_routing_replay", "is not supported by OsmosisAgentLoop")
        self._rows = VerlConfig(
            prompt_length=rollout.prompt_length,
            response_length=rollout.response_length,
            too_long="truncate",
            untrainable="skip",
            cut=cut,
            dropped=dropped,
        )

    def make_trainer(self, policy: Policy) -> Trainer:
        """Return the Trainer of this process, not yet entered."""
        return Trainer(self._servers, policy)

    def make_renderer(self) -> Renderer:
        """Return the renderer of the model's family, or of the chat template of verl's tokenizer."""
        params = to_json(self.apply_chat_template_kwargs, "apply_chat_template_kwargs")
        if self._renderer:
            return renderer_of(self.tokenizer, self._renderer, **params)
        return ChatRenderer(self.tokenizer, template_params=params)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        """Run a rollout for a row of the dataset, and return its AgentLoopOutput.

        In V1 of verl, return one AgentLoopOutput for each segment. V0 takes only one, that of the segment with the most
        sampled tokens; the others are counted in `left_out`, and logged the first time.

        Args:
            sampling_params: The sampling parameters of verl.
            **row: The columns of the row.

        Raises:
            FailedPrecondition: The rollout failed or cannot be trained on. V1 then drops the group of the row. V0
                aborts the step, because it cannot represent a row without a reward.
        """
        trainer = await _TRAINERS.get(self._servers, self.make_trainer)
        request = self._request(sampling_params, row)
        policy = partial(self._policy, request.completion_params)
        outcome = await trainer.outcome(request, policy, retries=self._retries)
        made = agent_loop_outputs(outcome, self._rows)
        if not made:
            why = outcome.not_trainable_reason or "the choice of cut and dropped leaves out everything it has"
            raise FailedPrecondition(f"rollout {outcome.rollout_id} has no row: {why}")
        if "session_id" in row:
            return [AgentLoopOutput(**each) for each in _of_v1(made, outcome.rollout_id, row)]
        return AgentLoopOutput(**_the_longest(made, outcome.rollout_id))

    def _request(self, sampling_params: Mapping[str, Any], row: Mapping[str, Any]) -> RolloutRequest:
        rollout_id, group = f"verl-{uuid.uuid4().hex}", None
        if "session_id" in row:  # V1 runs all members of a group in one process
            name = f"verl-{_RUN}-{row.get('global_steps', 0)}-{row['uid']}"
            group = Group(name, int(row["session_id"]))
        params = to_json(sampling_params, "sampling_params")
        params.pop("logprobs", None)
        label = _column(row, self._label) if self._label else None
        made: dict[str, Any] = {
            "rollout_id": rollout_id,
            "group": group,
            "messages": to_json(row["raw_prompt"], "raw_prompt"),
            "completion_params": params | ({"priority": int(row["priority"])} if row.get("priority") else {}),
            "max_tokens_total": self.rollout_config.response_length,
            "label": text_of(label, "label"),
            "metadata": {name: _column(row, name) for name in self._metadata},
        }
        return RolloutRequest(**{**made, **self._fields})

    async def _policy(self, params: Mapping[str, Any], request: ChatRequest) -> ChatResponse:
        """Answer a chat. `params` are the defaults for parameters that the agent does not set."""
        loop = asyncio.get_running_loop()
        if loop not in _POLICIES:
            rollout = self.rollout_config
            config = TokenPolicyConfig(
                max_tokens=rollout.response_length,
                context=rollout.get("max_model_len") or rollout.prompt_length + rollout.response_length,
            )
            generator = ServerManagerGenerator(self.server_manager)
            _POLICIES[loop] = TokenPolicy(self.make_renderer(), generator, config)
        return await _POLICIES[loop](replace(request, params={**params, **request.params}))


async def close_trainers() -> None:
    """Close the trainers of the running event loop. verl itself does not call it."""
    _POLICIES.pop(asyncio.get_running_loop(), None)
    await _TRAINERS.close()


def _of_v1(made: list[dict[str, Any]], rollout_id: str, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows for V1, with integers as steps. Raises InvalidArgument if their rewards differ."""
    if len({each["reward_score"] for each in made}) > 1:
        raise InvalidArgument(
            "reward",
            f"the samples of rollout {rollout_id} have different rewards, and verl gives all rows of a rollout the "
            "reward of the last one; set train=False on the samples that are not to be trained on",
        )
    for each in made:
        steps = {name: row.get("global_steps", 0) for name in _STEPS if each["extra_fields"].get(name) is None}
        each["extra_fields"] |= steps
    return made


def _the_longest(made: list[dict[str, Any]], rollout_id: str) -> dict[str, Any]:
    """Return the row with the most sampled tokens. Count the others, and log it the first time."""
    chosen = max(made, key=lambda each: sum(each["response_mask"]))
    if len(made) > 1:
        tokens = sum(sum(each["response_mask"]) for each in made if each is not chosen)
        if not left_out:
            log.warning(
                "rollout %s has %d segments, and V0 of verl trains on one: %d sampled tokens are left out. V1 "
                "(trainer.use_v1=True) trains on all. left_out in %s counts further ones",
                rollout_id,
                len(made),
                tokens,
                __name__,
            )
        left_out.update(segments=len(made) - 1, tokens=tokens)
    return chosen


def _column(row: Mapping[str, Any], path: str) -> Any:
    """Return the value of a column, or of a dotted path into one, or None if the row lacks it."""
    value: Any = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return to_json(value, path)
