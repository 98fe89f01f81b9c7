"""Opens models that take token ids: vllm-grpc:HOST:PORT and smg:HOST:PORT (gRPC), and vllm-http:HOST:PORT (HTTP)."""

import asyncio
from collections.abc import Callable
from tempfile import TemporaryDirectory

from osmosis_grpc.integrations.smg import SmgGenerator
from osmosis_grpc.integrations.vllm_grpc import VllmGrpcGenerator
from osmosis_grpc.integrations.vllm_http import VllmHttpGenerator
from osmosis_grpc.policies import ChatRenderer, TemplateTokenizer, TokenPolicy, TokenPolicyConfig
from osmosis_grpc.protocol.errors import CallError, MissingExtraError
from osmosis_grpc.records.evaluate import ModelError
from osmosis_grpc.records.evaluate.models import Model

Generator = VllmGrpcGenerator | VllmHttpGenerator | SmgGenerator
GENERATORS: dict[str, Callable[[str], Generator]] = {
    "vllm-grpc": VllmGrpcGenerator,
    "vllm-http": lambda target: VllmHttpGenerator(target if "//" in target else f"http://{target}"),
    "smg": SmgGenerator,
}
"""Maps the kind of a model to a function that makes its generator from HOST:PORT."""


def open_token_model(name: str, tokenizer: str | None) -> Model:
    """Open the model with a name. `tokenizer` is a folder; without it, the inference server is asked for its tokenizer.

    Raises ModelError, and MissingExtraError if a needed library is not installed.
    """
    kind, _, target = name.partition(":")
    try:
        generator = GENERATORS[kind](target)
        files = TemplateTokenizer(tokenizer) if tokenizer else None
        with TemporaryDirectory() as temporary:
            context = asyncio.run(_asked(generator, None if files else temporary))
            renderer = ChatRenderer(files or TemplateTokenizer(temporary))
    except MissingExtraError:
        raise
    except (CallError, ModelError, ValueError, OSError) as error:
        raise ModelError(f"{name}: {error}") from None
    config = TokenPolicyConfig(context=context)
    return Model(name, [lambda: TokenPolicy(renderer, generator, config)], url=target)


async def _asked(generator: Generator, folder: str | None) -> int | None:
    """Return the length of the model's context in tokens; None if the inference server does not report it.

    Download the tokenizer into `folder` if one is given. Raises ModelError if the server does not send it.
    """
    if folder is not None and not isinstance(generator, SmgGenerator):
        raise ModelError("the server does not send its tokenizer; name a folder that has it with --tokenizer")
    async with generator:
        if folder is not None and isinstance(generator, SmgGenerator):
            await generator.download_tokenizer(folder)
        return await generator.context_length() or None
