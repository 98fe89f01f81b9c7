"""Settings: the only reader of the environment.

Names, defaults and bounds are those of the Osmosis SDK. A value out of bounds raises
pydantic's ValidationError at construction; `problems` tells it by the variable's name.
"""

import os
from typing import Annotated, Any

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict


def _fits_a_header(token: SecretStr | None) -> SecretStr | None:
    if token is not None:
        _check(token.get_secret_value())
    return token


def _fit_headers(tokens: SecretStr | None) -> SecretStr | None:
    for text in _lines(tokens) or [""] if tokens is not None else ():
        _check(text)
    return tokens


def _check(text: str) -> None:
    if not text or not text.isascii() or not text.isprintable() or text != text.strip():
        raise ValueError("a token is printable ASCII without blanks around it, and not empty")


def _lines(tokens: SecretStr | None) -> list[str]:
    return [text for text in tokens.get_secret_value().split("\n") if text] if tokens is not None else []


_Token = Annotated[SecretStr | None, AfterValidator(_fits_a_header)]
_Tokens = Annotated[SecretStr | None, AfterValidator(_fit_headers)]


class RolloutClientSettings(BaseSettings):
    """How the HTTP gateway calls a trainer: OSMOSIS_ROLLOUT_CLIENT_*. Times are in seconds."""

    model_config = SettingsConfigDict(
        env_prefix="OSMOSIS_ROLLOUT_CLIENT_", env_file=".env", extra="ignore", hide_input_in_errors=True
    )

    timeout_seconds: float = Field(default=300.0, ge=1.0, le=3600.0)
    """How long one call may take."""
    max_retries: int = Field(default=3, ge=0, le=10)
    """How often a chat is tried again."""
    complete_rollout_retries: int = Field(default=2, ge=0, le=10)
    """How often a completion is tried again at once, before the slow tries begin."""
    retry_base_delay: float = Field(default=1.0, ge=0.1, le=60.0)
    """The first pause between tries."""
    retry_max_delay: float = Field(default=30.0, ge=1.0, le=300.0)
    """The longest pause between tries."""
    max_connections: int = Field(default=100, ge=1, le=100_000)
    """Connections at once."""
    max_keepalive_connections: int = Field(default=20, ge=0, le=100_000)
    """Idle connections kept."""
    token: _Token = None
    """The bearer token that the gateway shows to the gRPC agent server behind it. Never shown."""


class RolloutServerSettings(BaseSettings):
    """How a server is sized: OSMOSIS_ROLLOUT_SERVER_*."""

    model_config = SettingsConfigDict(
        env_prefix="OSMOSIS_ROLLOUT_SERVER_", env_file=".env", extra="ignore", hide_input_in_errors=True
    )

    max_concurrent_rollouts: int = Field(default=100, ge=1, le=10_000)
    """Rollouts that run at once."""
    record_ttl_seconds: float = Field(default=3600.0, ge=60.0, le=86_400.0)
    """How long an ended rollout is kept, and how long its completion is tried."""
    agent_timeout_seconds: float = Field(default=1800.0, ge=1.0, le=604_800.0)
    """How long a rollout may run whose request names no agent_timeout."""
    max_metadata_size_bytes: int = Field(default=1024 * 1024, ge=1024, le=100 * 1024 * 1024)
    """The most bytes of a request's metadata."""
    state_dir: str = Field(default="./.osmosis/state", min_length=1)
    """Where the journal is; :memory: for none."""
    token: _Tokens = None
    """What callers have to show as their bearer token, over gRPC and HTTP; nothing when unset. Several stand on a
    line each, SECRET or NAME=SECRET. Never shown."""
    connect_token: _Token = None
    """The bearer token of the trainers that are dialled (--connect). Never shown."""
    legacy_agent_token: _Token = None
    """The bearer token of the legacy agent servers that this one hosts. Never shown."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens that callers may show, each SECRET or NAME=SECRET."""
        return tuple(_lines(self.token))


class RolloutSettings(BaseSettings):
    """All of them. Only the two parts read the environment, each under its prefix."""

    model_config = SettingsConfigDict(hide_input_in_errors=True)

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *others: Any, **more: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is given in code, and nothing else."""
        return (init_settings,)

    failpoint: str = Field(default_factory=lambda: os.environ.get("OSMOSIS_FAILPOINT", ""))
    """Where a test wants this process to be killed: see engine/failpoints.py."""
    client: RolloutClientSettings = Field(default_factory=RolloutClientSettings)
    server: RolloutServerSettings = Field(default_factory=RolloutServerSettings)


_configured: RolloutSettings | None = None


def get_settings() -> RolloutSettings:
    """The settings of this process: what configure was given, else what the environment and .env say now."""
    return _configured or RolloutSettings()


def configure(settings: RolloutSettings) -> None:
    """Set the settings of this process; what was started before keeps its own."""
    global _configured
    _configured = settings


def reset_settings() -> None:
    """Undo configure."""
    global _configured
    _configured = None


def grpc_tracers() -> str:
    """What gRPC itself was told to print, in the variable that it reads."""
    return os.environ.get("GRPC_TRACE", "")


def problems(error: ValidationError) -> str:
    """What is wrong with the environment, by the variables' names."""
    parts = {part.__name__: part.model_config.get("env_prefix", "") for part in _PARTS}
    prefix = parts.get(error.title, "")
    return "; ".join(f"{prefix}{'.'.join(map(str, row['loc'])).upper()}: {row['msg']}" for row in error.errors())


_PARTS: tuple[type[BaseSettings], ...] = (RolloutClientSettings, RolloutServerSettings)
