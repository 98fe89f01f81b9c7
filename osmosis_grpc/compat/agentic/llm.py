"""LLM functions: OpenAI-compatible servers, Anthropic's Messages API, and any function of the user.

An LLM function is a callable `llm_generate_func(messages, **kwargs)`, async or not. It returns a text, a dict or an
object. policy_of() turns it into the policy that an engine or a Trainer asks.
"""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.compat.agentic.config import ANTHROPIC, OPENAI, Provider
from osmosis_grpc.compat.agentic.llm_calls import Retries, RetryingPolicy, reply_of
from osmosis_grpc.policies import AnthropicPolicy, OpenAIPolicy
from osmosis_grpc.policies.threads import ThreadedPolicy, is_async
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse
from osmosis_grpc.supervise import DaemonThreads

LLMFunction = Callable[..., Any]
"""Called as `function(messages, **kwargs)`. `messages` and `tools` are in OpenAI's format. The other keywords are
sampling parameters under OpenAI's names."""
THREADS = 64
"""At most this many calls of a sync function run at once. Further calls wait."""
MODEL = "ANTHROPIC_MODEL"


def policy_of(function: LLMFunction, retries: Retries | None = None) -> RetryingPolicy:
    """Return the policy that asks an LLM function. OpenAIFunction and AnthropicFunction keep their own retries.

    Raises TypeError if `function` is not callable.
    """
    if isinstance(function, ModelFunction):
        return function.policy
    return RetryingPolicy(FunctionPolicy(function), retries or Retries())


class FunctionPolicy(ThreadedPolicy):
    """Asks a function of the user. A sync function runs on a thread, so it does not block the event loop.

    The function gets `tools` and the sampling parameters as keywords. A function without `**kwargs` gets only those
    that it names. Raises InvalidArgument if a chat has tools, and the function takes none.
    """

    def __init__(self, function: LLMFunction) -> None:
        if not callable(function):
            raise TypeError(f"llm_generate_func: {function!r:.80} is not callable; pass a function of messages")
        super().__init__(function)
        self._function: LLMFunction = function
        self._threads = DaemonThreads(THREADS, replaced=THREADS, name="sync LLM functions")
        self._named = _keywords(function)

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        keywords = dict(request.params)
        if request.tools:
            keywords["tools"] = list(request.tools)
        if self._named is not None:
            if request.tools and "tools" not in self._named:
                raise InvalidArgument("llm_generate_func", "takes no keyword `tools`, and the agent offers tools")
            keywords = {name: value for name, value in keywords.items() if name in self._named}
        call = functools.partial(self._function, [dict(message) for message in request.messages], **keywords)
        value = call() if is_async(self._function) else await self._threads.run(call)
        return reply_of(await value if inspect.isawaitable(value) else value)


def _keywords(function: LLMFunction) -> frozenset[str] | None:
    """Return the keywords that a function takes after `messages`; None if it takes any."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin has no signature
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    usable = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(parameter.name for parameter in parameters[1:] if parameter.kind in usable)


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMConfig:
    """The configuration of a model behind HTTP. Keywords of a call with the same name win."""

    model: str
    base_url: str | None = None
    """None means the provider's environment variable, or its usual URL if that is not set."""
    api_key: str | None = field(default=None, repr=False)
    """None means the provider's environment variable."""
    timeout: float = 600.0
    """One call may take this many seconds."""
    retries: Retries = field(default_factory=Retries)
    params: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters, such as temperature, for requests that do not set them."""
    token_ids: bool = False
    """Whether to ask the server for token ids, as vLLM and SGLang return them. For OpenAIFunction only."""
    stream: bool = False
    """Whether the server streams a reply. A call still returns it as a whole. For OpenAIFunction only."""


OVERRIDES = frozenset({"model", "base_url", "api_key", "timeout", "stream"})
"""Keywords of a call that replace a field of LLMConfig. Such a call opens its own connection."""


class ModelFunction:
    """An LLM function that asks a model server.

        async with OpenAIFunction(model="gpt-5-mini") as llm:
            reply = await llm([{"role": "user", "content": "Hello"}], max_tokens=64)

    `reply` is a ChatResponse, with `message`, `finish_reason`, `usage` and `extra`. Outside of the `async with`, each
    call opens its own connection. Needs the extra `policies` (aiohttp).
    """

    provider: Provider

    def __init__(self, *, model: str, **config: Any) -> None:
        self.config = LLMConfig(model=model, **config)
        self.policy = RetryingPolicy(_ModelPolicy(self), self.config.retries)
        """Asks the model with the retries of the configuration."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(model={self.config.model!r})"

    async def __aenter__(self) -> "ModelFunction":
        await self.policy.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.policy.__aexit__(*exc)

    async def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        deadline: float | None = None,
        **params: Any,
    ) -> ChatResponse:
        """Return the reply to `messages`. All calls and pauses together take at most `deadline` seconds.

        `model`, `base_url`, `api_key`, `timeout` and `stream` replace the configured values. Other keywords are
        sampling parameters under OpenAI's names. Raises LLMError.
        """
        history = [dict(message) for message in messages]
        request = ChatRequest(rollout_id="llm", messages=history, tools=tools, params=params, timeout=deadline)
        return await self.policy(request)

    async def generate(self, messages: Sequence[Mapping[str, Any]], **kwargs: Any) -> str:
        """Return only the text of the reply. Raises LLMError."""
        content = (await self(messages, **kwargs)).message.get("content")
        return content if isinstance(content, str) else ""

    def make_policy(self, config: LLMConfig) -> Any:
        """Return the policy for a configuration. Raises ValueError for a malformed base_url."""
        raise NotImplementedError

    def key(self, config: LLMConfig) -> str | None:
        """Return the API key, if there is one. Raises InvalidArgument if the provider's own server lacks one."""
        key = self.provider.key(config.api_key)
        if key is None and self.provider.url(config.base_url) == self.provider.usual_url:
            raise InvalidArgument("api_key", f"is missing; give api_key, or set {self.provider.key_variable}")
        return key


class OpenAIFunction(ModelFunction):
    """Asks a server with OpenAI's API: `OpenAIFunction(model=..., base_url=..., api_key=...)`. See LLMConfig."""

    provider = OPENAI

    def make_policy(self, config: LLMConfig) -> OpenAIPolicy:
        """Return the policy for a configuration."""
        return OpenAIPolicy(
            self.provider.url(config.base_url),
            config.model,
            api_key=self.key(config),
            token_ids=config.token_ids,
            logprobs=config.token_ids,
            stream=config.stream,
            timeout=config.timeout,
        )


class AnthropicFunction(ModelFunction):
    """Asks Anthropic's Messages API: `AnthropicFunction(model=..., api_key=...)`. See LLMConfig."""

    provider = ANTHROPIC

    def make_policy(self, config: LLMConfig) -> AnthropicPolicy:
        """Return the policy for a configuration."""
        for name, why in (("token_ids", "Anthropic's API returns no token ids"), ("stream", "replies come as a whole")):
            if getattr(config, name):
                raise InvalidArgument(name, f"{why}; leave it out")
        return AnthropicPolicy(
            config.model, api_key=self.key(config), base_url=self.provider.url(config.base_url), timeout=config.timeout
        )


class _ModelPolicy:
    """Asks the model of a ModelFunction once. Keeps its connections open from the first entry to the last exit."""

    def __init__(self, function: ModelFunction) -> None:
        self._function = function
        self._kept: Any = None
        """The policy with open connections; None outside of `async with` and before its first call."""
        self._users = 0

    async def __aenter__(self) -> "_ModelPolicy":
        self._users += 1
        return self

    async def __aexit__(self, *exc: Any) -> None:
        self._users -= 1
        kept = self._kept
        if not self._users and kept is not None:
            self._kept = None
            await kept.__aexit__(*exc)

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        config = self._function.config
        params = {**config.params, **request.params}
        replaced = {name: params.pop(name) for name in OVERRIDES & params.keys()}
        asked = dataclasses.replace(request, params=params)
        async with await self._policy(dataclasses.replace(config, **replaced), keep=not replaced) as policy:
            reply: ChatResponse = await policy(asked)
            return reply

    async def _policy(self, config: LLMConfig, *, keep: bool) -> Any:
        """Return the policy for a configuration. With `keep`, its connections stay open within the `async with`."""
        if not (keep and self._users):
            return self._function.make_policy(config)
        if self._kept is None:
            self._kept = self._function.make_policy(config)
            await self._kept.__aenter__()
        return self._kept


class ClaudeAPIClient(AnthropicFunction):
    """An AnthropicFunction whose model can come from the variable ANTHROPIC_MODEL.

    Raises InvalidArgument without a model.
    """

    def __init__(self, api_key: str | None = None, *, model: str | None = None, **config: Any) -> None:
        chosen = model or os.environ.get(MODEL)
        if not chosen:
            raise InvalidArgument("model", f"is missing; give model, or set {MODEL}")
        super().__init__(model=chosen, api_key=api_key, **config)


class LLMAPIClient(OpenAIFunction):
    """An OpenAIFunction with the library's parameters. generate() returns the text of a reply.

    Args:
        api_key: The key.
        base_url: The address of the API.
        model: The model.
        debug: Has no effect. Set the level of the logger `osmosis_grpc` instead.
        max_retries: The most calls for one reply.
        proxy_url: Must be empty: requests go to `base_url` itself.
    """

    def __init__(
        self,
        api_key: str,
        base_url: str,
        model: str,
        debug: bool = False,
        max_retries: int = 3,
        proxy_url: str | None = None,
    ) -> None:
        if proxy_url:
            raise InvalidArgument("proxy_url", "is not served: requests go to base_url itself")
        retries = Retries(attempts=max(1, max_retries))
        super().__init__(model=model, base_url=base_url, api_key=api_key, retries=retries)

    async def close(self) -> None:
        """Do nothing: outside of `async with`, a call closes its connection."""
