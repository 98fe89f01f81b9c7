"""The models that take tokens: vllm-grpc:HOST:PORT and smg:HOST:PORT over gRPC, vllm-http:HOST:PORT over HTTP."""

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
"""Make the generator for HOST:PORT, by the kind of the model."""


def open_token_model(name: str, tokenizer: str | None) -> Model:
    """Return the model with a name. `tokenizer` is a folder; without it, the engine is asked for its tokenizer.

    Raises ModelError, and MissingExtraError without the library that it needs.
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
    """Return the length of the model's context; None if the engine does not say.

    Downloads the tokenizer if a folder for it is given. Raises ModelError if the engine does not send it.
    """
    if folder is not None and not isinstance(generator, SmgGenerator):
        raise ModelError("the server does not send its tokenizer; name a folder that has it with --tokenizer")
    async with generator:
        if folder is not None and isinstance(generator, SmgGenerator):
            await generator.download_tokenizer(folder)
        return await generator.context_length() or None
