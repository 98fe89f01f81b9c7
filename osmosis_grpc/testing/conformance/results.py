"""What a run of the suite found: one result for each case and mode."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from osmosis_grpc.testing.conformance.cases import Case


class Unusable(Exception):
    """The side under test cannot be tested at all."""


class Skipped(Exception):
    """The side under test lacks what a case needs."""


class Verdict(StrEnum):
    """The verdicts of a case."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    KNOWN = "known failure"
    """It failed, and the file of known failures names it."""
    UNEXPECTED = "passed, but is listed as a known failure"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a case in one mode."""

    case: Case
    mode: str
    verdict: Verdict
    seconds: float = 0.0
    reason: str = ""
    """Why it failed or was skipped."""
    trace: Sequence[str] = field(default=())
    out_of_time: bool = False
    """Whether it failed because something did not come in time."""

    @property
    def name(self) -> str:
        """The name of the case with its mode."""
        return f"{self.case.name}@{self.mode}"

    @property
    def bad(self) -> bool:
        """Whether the run fails because of it."""
        return self.verdict in (Verdict.FAILED, Verdict.UNEXPECTED)

    def as_data(self) -> Mapping[str, Any]:
        """Return the result for the report in JSON."""
        return {
            "case": self.case.name,
            "mode": self.mode,
            "verdict": self.verdict.value,
            "seconds": round(self.seconds, 3),
            "attacks": self.case.attacks,
            "shows": {name: list(sentences) for name, sentences in self.case.shows.items()},
            "reason": self.reason,
            "trace": list(self.trace) if self.bad or self.verdict is Verdict.KNOWN else [],
        }
