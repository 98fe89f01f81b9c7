"""The models that take tokens over gRPC: vllm-grpc:HOST:PORT, smg-vllm:HOST:PORT and smg-sglang:HOST:PORT."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from osmosis_grpc.errors import CallError, MissingExtraError
from osmosis_grpc.evaluate import ModelError
from osmosis_grpc.evaluate.models import Model
from osmosis_grpc.integrations.smg import SmgGenerator
from osmosis_grpc.integrations.vllm_grpc import VllmGrpcGenerator
from osmosis_grpc.policies import ChatRenderer, TemplateTokenizer, TokenGenerator, TokenPolicy

GENERATORS: dict[str, Callable[[str], TokenGenerator]] = {
    "vllm-grpc": VllmGrpcGenerator,
    "smg-vllm": partial(SmgGenerator, engine="vllm"),
    "smg-sglang": partial(SmgGenerator, engine="sglang"),
}
"""Make the generator for HOST:PORT, by the kind of the model."""


def open_token_model(name: str, tokenizer: str | None) -> Model:
    """Return the model with a name. `tokenizer` is a folder; without it, the engine is asked for its tokenizer.

    Raises ModelError, and MissingExtraError without the library that it needs.
    """
    kind, _, target = name.partition(":")
    try:
        generator = GENERATORS[kind](target)
        with TemporaryDirectory() as temporary:
            folder = tokenizer or asyncio.run(_downloaded(generator, temporary))
            renderer = ChatRenderer(TemplateTokenizer(folder))
    except MissingExtraError:
        raise
    except (CallError, ValueError, OSError) as error:
        raise ModelError(f"{name}: {error}") from None
    return Model(name, [lambda: TokenPolicy(renderer, generator)], url=target)


async def _downloaded(generator: TokenGenerator, folder: str) -> str:
    """Put the engine's tokenizer into a folder, and return the folder. Raises ModelError if it does not send it."""
    if not isinstance(generator, SmgGenerator):
        raise ModelError("the server does not send its tokenizer; name a folder that has it with --tokenizer")
    async with generator:
        return str(await generator.download_tokenizer(Path(folder)))
