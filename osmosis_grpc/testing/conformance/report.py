"""The results of a run of the suite, one for each case and mode, and reports as text, as JSON, and as JUnit XML."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from xml.etree import ElementTree

from osmosis_grpc.testing.conformance.cases import Case


class Unusable(Exception):
    """The side under test cannot be tested at all."""


class Skipped(Exception):
    """The side under test lacks what a case needs."""


class Verdict(StrEnum):
    """The possible verdicts on a case."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    KNOWN = "known failure"
    """The case failed, and the file of known failures names it."""
    UNEXPECTED = "passed, but is listed as a known failure"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a case in one mode."""

    case: Case
    mode: str
    verdict: Verdict
    seconds: float = 0.0
    reason: str = ""
    """Why the case failed or was skipped."""
    trace: Sequence[str] = field(default=())
    out_of_time: bool = False
    """Whether the case failed because something did not come in time."""

    @property
    def name(self) -> str:
        """The name of the case with its mode."""
        return f"{self.case.name}@{self.mode}"

    @property
    def bad(self) -> bool:
        """Whether this result makes the whole run fail."""
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


_MARKS = {
    Verdict.PASSED: "ok  ",
    Verdict.FAILED: "FAIL",
    Verdict.SKIPPED: "skip",
    Verdict.KNOWN: "known",
    Verdict.UNEXPECTED: "FAIL",
}
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def line(result: Result) -> str:
    """Return the line that is shown when a case ends."""
    reason = f"  {result.reason.splitlines()[0]}" if result.verdict is not Verdict.PASSED and result.reason else ""
    return f"{_MARKS[result.verdict]:<5} {result.seconds:6.2f} s  {result.name}{reason}"


def failures(results: Sequence[Result]) -> Iterator[str]:
    """Yield lines about failed cases: what each would catch, the sentences it checks, what differs, what was sent.

    Show only the first of the cases that failed for the same reason.
    """
    groups: dict[str, list[Result]] = {}
    for result in results:
        if result.bad:
            groups.setdefault(_cause(result), []).append(result)
    for result, *same in groups.values():
        yield ""
        yield f"{result.name}: {result.verdict.value}"
        yield f"  would catch: {result.case.attacks}"
        for name, sentences in result.case.shows.items():
            for sentence in sentences:
                yield f"  {name}: “{sentence}”"
        for text in result.reason.splitlines():
            yield f"  {text}"
        if result.trace:
            yield "  sent (->) and received (<-), with seconds since the beginning:"
            yield from (f"    {each}" for each in result.trace)
        if same:
            yield f"  {len(same)} more failed for the same reason: {', '.join(each.name for each in same)}"
    if any(result.out_of_time and result.bad for result in results):
        yield ""
        yield "Some of these cases waited in vain. A busy machine may be the reason: run them again with --jobs 1."


def _cause(result: Result) -> str:
    """Return the reason of a failure, without the number of the step and the ids of rollouts."""
    text = re.sub(r"^step \d+ \(([^)]*)\)", r"step (\1)", result.reason)
    return re.sub(rf"{re.escape(result.case.name)}-{result.mode}-[0-9a-f]+", "ROLLOUT", text)


def summary(results: Sequence[Result], seconds: float) -> str:
    """Return one line that counts the verdicts."""
    counts = Counter(result.verdict for result in results)
    parts = [f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict]]
    return f"{len(results)} case{'s' * (len(results) != 1)} in {seconds:.1f} s: {', '.join(parts) or 'none ran'}"


def skipped(results: Sequence[Result]) -> Iterator[str]:
    """Yield a line for each reason why cases were skipped."""
    counts = Counter(result.reason for result in results if result.verdict is Verdict.SKIPPED)
    for reason, count in counts.items():
        yield f"{count} skipped: {reason}"


def as_json(results: Sequence[Result], seconds: float, under_test: str) -> dict[str, Any]:
    """Return the report for a program."""
    counts = Counter(result.verdict.name.lower() for result in results)
    return {
        "under_test": under_test,
        "seconds": round(seconds, 3),
        "counts": {verdict.name.lower(): counts[verdict.name.lower()] for verdict in Verdict},
        "cases": [result.as_data() for result in results],
    }


def as_junit(results: Sequence[Result], seconds: float, under_test: str) -> str:
    """Return the report as JUnit XML."""
    bad = sum(result.bad for result in results)
    left_out = sum(result.verdict in (Verdict.SKIPPED, Verdict.KNOWN) for result in results)
    counts = {"tests": str(len(results)), "failures": str(bad), "skipped": str(left_out), "time": f"{seconds:.3f}"}
    suite = ElementTree.Element("testsuite", {"name": "conformance", **counts, "hostname": _clean(under_test)})
    for result in results:
        classname = f"conformance.{result.case.side}.{result.mode}"
        case = ElementTree.SubElement(
            suite, "testcase", classname=classname, name=_clean(result.case.name), time=f"{result.seconds:.3f}"
        )
        if result.bad:
            quotes = [f"{name}: {sentence}" for name, listed in result.case.shows.items() for sentence in listed]
            failure = ElementTree.SubElement(case, "failure", message=_clean(result.reason.splitlines()[0]))
            failure.text = _clean("\n".join([result.case.attacks, *quotes, result.reason, *result.trace]))
        elif result.verdict is not Verdict.PASSED:
            ElementTree.SubElement(case, "skipped", message=_clean(result.reason or result.verdict.value))
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    return _NOT_XML.sub("?", text)
