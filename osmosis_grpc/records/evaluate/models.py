"""Creates a model by its name, and probes it before a run, so that a wrong key gives one error, not one for each row.

    mock:echo           replies with the text of the last message
    mock:tools          calls every tool once, and then answers
    mock:script=FILE    replies from a JSON file
    litellm:NAME        any provider of litellm (extra `litellm`)
    NAME                a model of an OpenAI-compatible server

If there is no base URL, a NAME with a slash, such as anthropic/claude-sonnet-4-5, is also taken as a name of litellm.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from osmosis_grpc.policies import EchoPolicy, EveryToolMock, LiteLLMPolicy, OpenAIPolicy, Policy, ScriptedPolicy
from osmosis_grpc.policies.model_http import checked_url
from osmosis_grpc.protocol.errors import CallError, FailedPrecondition, Internal, InvalidArgument
from osmosis_grpc.protocol.types import ChatRequest, Message
from osmosis_grpc.protocol.types.messages import copy_message
from osmosis_grpc.records.evaluate.columns import kind_of
from osmosis_grpc.records.evaluate.errors import ModelError
from osmosis_grpc.records.local_host import entered

DEFAULT_MODEL = "gpt-5-mini"
OPENAI = "https://api.openai.com/v1"
KEY_VARIABLE = "OPENAI_API_KEY"
URL_VARIABLE = "OPENAI_BASE_URL"
PROBE = "Reply with the word OK."
PROBE_TOKENS = 16
"""How many tokens the reply to the probe may have, if the server allows such a small limit."""
UNREACHABLE = "the model server cannot be reached"
EVERY_ROW = "*"
"""The key of a script for all rows without a key of their own."""


class Model:
    """A model that answers the chats of a run. `name` is what the user wrote.

    `variants` create the policies to try; the first that replies to the probe is used. Mocks are not probed.
    """

    def __init__(
        self, name: str, variants: Sequence[Callable[[], Policy]], *, url: str | None = None, mock: bool = False
    ) -> None:
        self.name = name
        self.url = url
        """The address of the model server; None for a mock, or if a library chooses it."""
        self.mock = mock
        self._variants = variants
        self.policy: Policy = variants[0]()
        """The policy that answers the chats. probe() may replace it."""

    async def probe(self, params: Mapping[str, Any]) -> None:
        """Ask the model once, with the sampling parameters of the run. Raises ModelError if it gives no reply."""
        if self.mock:
            return
        problem: CallError | None = None
        for make in self._variants:
            for limit in ({"max_tokens": PROBE_TOKENS}, {}):
                self.policy = make()
                try:
                    await self._ask({**limit, **params})
                except (Internal, InvalidArgument) as error:  # the server may refuse a parameter of this variant
                    problem = problem or error
                except CallError as error:
                    raise ModelError(f"{self.name}: {_advice(self.name, error)}") from None
                else:
                    return
        raise ModelError(f"{self.name}: {_advice(self.name, problem)}")

    async def _ask(self, params: Mapping[str, Any]) -> None:
        request = ChatRequest(rollout_id="probe", messages=[{"role": "user", "content": PROBE}], params=params)
        async with entered(self.policy):
            reply: Any = self.policy(request)
            await reply


def open_model(name: str, *, base_url: str | None = None, api_key: str | None = None) -> Model:
    """Return the model with a name. Raises ModelError, or MissingExtraError if its library is not installed."""
    kind, colon, rest = name.partition(":")
    if kind == "mock" and colon:
        given = [option for option, value in (("--base-url", base_url), ("--api-key", api_key)) if value]
        if given:
            raise ModelError(f"{name} asks no server; leave out {' and '.join(given)}")
        return Model(name, [lambda: _mock(rest)], mock=True)
    url = base_url or os.environ.get(URL_VARIABLE) or None
    if (kind == "litellm" and colon) or (url is None and "/" in name):
        return _litellm(rest if kind == "litellm" else name, base_url, api_key)
    key = api_key or os.environ.get(KEY_VARIABLE)
    if url is None and not key:
        raise ModelError(
            f"{name}: a key is missing; set {KEY_VARIABLE}, or give --base-url for a server of your own, or try "
            "--model mock:tools"
        )
    return _openai(name, url or OPENAI, key)


def _openai(name: str, url: str, key: str | None) -> Model:
    """Return a model of an OpenAI-compatible server. Its first variant asks for token ids; some servers refuse that."""
    check_url(url)
    return Model(
        name,
        [
            lambda: OpenAIPolicy(url, name, api_key=key),
            lambda: OpenAIPolicy(url, name, api_key=key, token_ids=False, logprobs=False),
        ],
        url=url,
    )


def check_url(url: str) -> None:
    """Raise ModelError if a base URL is malformed or contains a secret, because a run writes its URL to a file."""
    try:
        checked_url(url)
    except ValueError as error:
        raise ModelError(f"--{str(error).replace('base_url', 'base-url').replace('api_key', '--api-key')}") from None


def _litellm(name: str, base_url: str | None, key: str | None) -> Model:
    if not name:
        raise ModelError("litellm: is not litellm:NAME, for example litellm:anthropic/claude-sonnet-4-5")
    return Model(f"litellm:{name}", [lambda: LiteLLMPolicy(name, api_key=key, base_url=base_url)], url=base_url)


def _mock(kind: str) -> Policy:
    name, equals, file = kind.partition("=")
    if kind == "echo":
        return EchoPolicy()
    if kind == "tools":
        return EveryToolMock()
    if name == "script" and equals and file:
        return Script(Path(file))
    raise ModelError(f"mock:{kind}: the mocks are mock:echo, mock:tools and mock:script=FILE")


class Script:
    """Replies from a JSON file. It has one list of replies for all rows, or an object that maps row numbers to lists.

    A reply is a text or an assistant message. Chat n of a sample gets reply n. The key "*" of an object has the replies
    for rows without a key of their own. Raises ModelError if the file is malformed.
    """

    def __init__(self, path: Path) -> None:
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
        except json.JSONDecodeError as error:
            raise ModelError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from None
        except ValueError as error:
            raise ModelError(f"{path}: not JSON: {error}") from None
        scripts = value if isinstance(value, dict) else {EVERY_ROW: value}
        self._rows = {row: ScriptedPolicy(list(_replies(path, row, replies))) for row, replies in scripts.items()}

    async def __call__(self, request: ChatRequest, /) -> Any:
        row = request.rollout_id.rpartition("-")[2]
        policy = self._rows.get(row) or self._rows.get(row.partition(".")[0]) or self._rows.get(EVERY_ROW)
        if policy is None:
            raise FailedPrecondition(f"the script has no replies for row {row}")
        return await policy(request)


def _replies(path: Path, row: str, value: Any) -> Iterator[str | Message]:
    if not isinstance(value, list):
        raise ModelError(f"{path}: the replies of row {row} are not a list of texts and assistant messages")
    for number, reply in enumerate(value):
        if isinstance(reply, str):
            yield reply
            continue
        if not isinstance(reply, dict):
            raise ModelError(f"{path}: row {row}: [{number}] is {kind_of(reply)}, not a text or an assistant message")
        try:
            message = copy_message({"role": "assistant"} | reply, f"[{number}]")
            if message["role"] != "assistant":
                raise InvalidArgument(f"[{number}].role", "a reply's role is assistant")
        except InvalidArgument as error:
            raise ModelError(f"{path}: row {row}: {error}") from None
        yield message


def _advice(name: str, error: CallError | None) -> str:
    """Return the text of a model's error, with the options of the command and the variable of the key in its advice."""
    provider, slash, _ = name.removeprefix("litellm:").partition("/")
    variable = f"{provider.upper()}_API_KEY" if name.startswith("litellm:") and slash else KEY_VARIABLE
    text = str(error).replace("check api_key", f"check --api-key or {variable}")
    text = text.replace("check base_url and model", "check --base-url and --model")
    return f"{text}; check --base-url, and that the server runs" if UNREACHABLE in text else text
