"""Samples tokens from vLLM or SGLang over the gRPC services of smg-grpc-proto. Needs the extra `smg`.

    policy = TokenPolicy(renderer, SmgGenerator("127.0.0.1:50051"))

The services have no authentication, and no fields for a session or a priority. For a proxy in front of them, you can
set a token and TLS, and the session id is sent as the metadata x-session-id.
"""

import hashlib
import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_grpc.network import grpc_variables  # noqa: F401 - before anything imports grpc

# isort: split
import grpc

from osmosis_grpc.integrations._model_server import NO_CREDENTIALS, ModelClient
from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.policies.generation import Generated, GenerateRequest, WeightNames
from osmosis_grpc.protocol.errors import Internal, InvalidArgument, MissingExtraError

if TYPE_CHECKING:
    from osmosis_grpc.integrations._smg_engines import Engine

__all__ = ["SmgGenerator"]

SHORT = 10.0
"""The timeout of calls that do not sample, in seconds."""
TOKENIZER_SECONDS = 120.0
AUTO = "auto"
LARGEST_TOKENIZER = 256 * 1024 * 1024
"""The largest tokenizer in bytes, both packed and unpacked."""


class SmgGenerator(ModelClient):
    """A TokenGenerator for an engine. `async with` closes its connection, as TokenPolicy does.

    SGLang reports the name of its weights. vLLM does not report it over this service: set TokenPolicyConfig.version, or
    leave the version to the trainer.

    Args:
        target: HOST:PORT of the engine.
        engine: "vllm", "sglang", or "auto" to detect it at the first call.
        credentials: A token and TLS, for a proxy.

    Raises:
        MissingExtraError: smg-grpc-proto is not installed.
        ValueError: The target or the engine is invalid.
    """

    def __init__(self, target: str, *, engine: str = AUTO, credentials: Credentials = NO_CREDENTIALS) -> None:
        try:
            from osmosis_grpc.integrations import _smg_engines as engines
        except ImportError:
            raise MissingExtraError("SmgGenerator", "smg") from None
        known = engines.ENGINES
        if engine not in (AUTO, *known):
            raise ValueError(f"engine: {engine!r} is not one of {AUTO}, {', '.join(known)}")
        super().__init__(target, credentials)
        self._messages = engines
        self._engine = known.get(engine)
        self._weights = WeightNames(target)

    async def generate(self, request: GenerateRequest, /) -> Generated:
        """See TokenGenerator.

        Raises InvalidArgument for media, and for parameters that the service or the engine does not accept.
        """
        if request.media:
            problem = "this service does not return the tokens of an image; use vLLM's own gRPC service"
            raise InvalidArgument("messages", f"have {len(request.media)} images or other media: {problem}")
        engine = await self._known_engine()
        message = engine.to_message(request)
        name = str((await self._model_info(engine)).weight_version) if engine.names_weights else ""
        version = self._weights.read(name)
        metadata = self._server.metadata(request.session_id)
        stream = self._stub(engine).Generate(message, timeout=request.timeout, metadata=metadata)
        try:
            reply = await self._server.answer(_complete(stream))
        except Internal as error:
            raise engine.refusal(request, error) from None
        return self._messages.from_message(request, reply, version)

    async def abort(self, request_id: str, /) -> None:
        """Stop the sampling of a call. Raises CallError if the engine cannot be reached."""
        engine = self._engine
        if engine is not None:  # if it is unknown, no call was sent
            sent = self._stub(engine).Abort(
                engine.abort_request(request_id), timeout=SHORT, metadata=self._server.metadata()
            )
            await self._server.answer(sent)

    async def context_length(self) -> int:
        """Return the most tokens of a prompt and its reply together; 0 if the engine does not say."""
        return int((await self._model_info(await self._known_engine())).max_context_length)

    async def download_tokenizer(self, folder: str | Path) -> Path:
        """Download the engine's tokenizer into a folder, which is created if necessary. Return the folder.

        transformers and TemplateTokenizer can read it. Raises Internal if the tokenizer is damaged.
        """
        engine = await self._known_engine()
        stream = self._stub(engine).GetTokenizer(
            self._messages.tokenizer_request(), timeout=TOKENIZER_SECONDS, metadata=self._server.metadata()
        )
        data = await self._server.answer(_joined(stream))
        _unpack(data, Path(folder))
        return Path(folder)

    async def _known_engine(self) -> "Engine":
        """Return the engine, detected if necessary. Raises Internal if the server is neither."""
        for engine in () if self._engine is not None else self._messages.ENGINES.values():
            try:
                await self._stub(engine).GetModelInfo(
                    engine.model_info_request(), timeout=SHORT, metadata=self._server.metadata()
                )
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise await self._server.error_of(error) from None
            else:
                self._engine = engine
                break
        if self._engine is None:
            raise Internal(f"{self._server.target} has no service of smg-grpc-proto, neither for vLLM nor for SGLang")
        return self._engine

    async def _model_info(self, engine: "Engine") -> Any:
        message = engine.model_info_request()
        sent = self._stub(engine).GetModelInfo(message, timeout=SHORT, metadata=self._server.metadata())
        return await self._server.answer(sent)

    def _stub(self, engine: "Engine") -> Any:
        return engine.stub(self._server.open())


async def _complete(stream: Any) -> Any:
    """Return the last message of a stream, which is the complete reply. Raises Internal if there is none."""
    found = None
    async for response in stream:
        if response.HasField("complete"):
            found = response.complete
    if found is None:
        raise Internal("the model server's stream ended without a complete reply")
    return found


async def _joined(stream: Any) -> bytes:
    """Return the bytes of a tokenizer. Raises Internal if there are too many or the checksum differs."""
    parts, checksum, size = [], "", 0
    async for chunk in stream:
        size += len(chunk.data)
        if size > LARGEST_TOKENIZER:
            raise Internal(f"the model server's tokenizer has more than {LARGEST_TOKENIZER} bytes")
        parts.append(chunk.data)
        checksum = chunk.sha256 or checksum
    data = b"".join(parts)
    if checksum != hashlib.sha256(data).hexdigest():
        raise Internal("the model server's tokenizer is damaged: its checksum differs")
    return data


def _unpack(data: bytes, folder: Path) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as files:
            if sum(file.file_size for file in files.infolist()) > LARGEST_TOKENIZER:
                raise Internal(f"the model server's tokenizer has more than {LARGEST_TOKENIZER} bytes")
            folder.mkdir(parents=True, exist_ok=True)
            files.extractall(folder)  # safe: removes .. and absolute paths from names
    except zipfile.BadZipFile as error:
        raise Internal(f"the model server's tokenizer is damaged: {error}") from None
