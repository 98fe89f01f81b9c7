"""Reads the environment variables of the Agentic Rollout Library.

A value that a caller gives wins over the variable, and a request's value wins over both.
"""

import logging
import os
from dataclasses import dataclass

LOG_LEVEL = "AGENTIC_LOG_LEVEL"
SAVE_TRAJECTORIES = "AGENTIC_SAVE_TRAJECTORIES"
SWITCHES = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True, slots=True)
class Provider:
    """The names of a provider's variables, and the URL without any."""

    key_variable: str
    url_variable: str
    usual_url: str

    def key(self, given: str | None) -> str | None:
        """Return the given key, otherwise the key of the environment; None if both are missing or empty."""
        return given or os.environ.get(self.key_variable) or None

    def url(self, given: str | None) -> str:
        """Return the given base URL, otherwise the URL of the environment, otherwise the usual one."""
        return given or os.environ.get(self.url_variable) or self.usual_url


OPENAI = Provider("OPENAI_API_KEY", "OPENAI_BASE_URL", "https://api.openai.com/v1")
ANTHROPIC = Provider("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "https://api.anthropic.com")


def save_trajectories(given: bool | None = None) -> bool:
    """Return the given value, otherwise AGENTIC_SAVE_TRAJECTORIES, otherwise False.

    Raises ValueError if the variable is neither true nor false.
    """
    if given is not None:
        return given
    text = os.environ.get(SAVE_TRAJECTORIES, "")
    if text and text.strip().lower() not in SWITCHES:
        raise ValueError(f"{SAVE_TRAJECTORIES}: {text!r:.40} is neither true nor false")
    return SWITCHES.get(text.strip().lower(), False)


def log_level(given: str | None = None) -> int | None:
    """Return the number of the given level, otherwise of AGENTIC_LOG_LEVEL; None if both are missing.

    Raises ValueError, naming the variable, for a text that is no level.
    """
    name, text = ("log_level", given) if given else (LOG_LEVEL, os.environ.get(LOG_LEVEL, ""))
    if not text:
        return None
    if text.strip().upper() not in LEVELS:
        raise ValueError(f"{name}: {text!r:.40} is none of {', '.join(LEVELS)}")
    return logging.getLevelNamesMapping()[text.strip().upper()]


def without_keys(text: str) -> str:
    """Return a text without the keys of the environment."""
    for provider in (OPENAI, ANTHROPIC):
        key = provider.key(None)
        text = text.replace(key, "[key]") if key else text
    return text
