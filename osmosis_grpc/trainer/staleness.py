"""The age of an outcome's tokens, in versions of the policy."""

import math

from osmosis_grpc.protocol.types import RolloutOutcome


def version_lag(outcome: RolloutOutcome, version: str | int) -> float | None:
    """Return how many versions the oldest sampled token of an outcome is behind `version`.

    Args:
        outcome: The outcome.
        version: The version to compare with, usually that of the next step.

    Returns:
        The number; None if the outcome has no sampled tokens, or if a version is missing or is not a number.
    """
    current = version_number(str(version))
    segments = [segment for sample in outcome.samples.values() for segment in sample.segments if segment.sampled]
    numbers = [version_number(span.version) for segment in segments for span in segment.versions]
    if current is None or not all(segment.versions for segment in segments):
        return None
    known = [number for number in numbers if number is not None]
    return current - min(known) if known and len(known) == len(numbers) else None


def version_number(version: str) -> float | None:
    """Return a version as a number; None if it is not a finite number."""
    try:
        number = float(version)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
