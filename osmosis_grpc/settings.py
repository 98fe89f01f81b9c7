"""Settings: the only reader of the environment.

Names, defaults and bounds are those of the Osmosis SDK. A value out of bounds raises
pydantic's ValidationError at construction, naming the setting.
"""

from typing import Any

from pydantic import Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict


class RolloutClientSettings(BaseSettings):
    """How the HTTP gateway calls a trainer: OSMOSIS_ROLLOUT_CLIENT_*. Times are in seconds."""

    model_config = SettingsConfigDict(env_prefix="OSMOSIS_ROLLOUT_CLIENT_", env_file=".env", extra="ignore")

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


class RolloutServerSettings(BaseSettings):
    """How a server is sized: OSMOSIS_ROLLOUT_SERVER_*."""

    model_config = SettingsConfigDict(env_prefix="OSMOSIS_ROLLOUT_SERVER_", env_file=".env", extra="ignore")

    max_concurrent_rollouts: int = Field(default=100, ge=1, le=10_000)
    """Rollouts that run at once."""
    record_ttl_seconds: float = Field(default=3600.0, ge=60.0, le=86_400.0)
    """How long an ended rollout is kept."""
    max_metadata_size_bytes: int = Field(default=1024 * 1024, ge=1024, le=100 * 1024 * 1024)
    """The most bytes of a request's metadata."""


class RolloutSettings(BaseSettings):
    """All of them. Only the two parts read the environment, each under its prefix."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *others: Any, **more: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is given in code, and nothing else."""
        return (init_settings,)

    client: RolloutClientSettings = Field(default_factory=RolloutClientSettings)
    server: RolloutServerSettings = Field(default_factory=RolloutServerSettings)
