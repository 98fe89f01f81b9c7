"""The kinds of background work: their names, and what happens when one fails."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Literal


class OnFailure(StrEnum):
    """What happens when a job raises."""

    RESTART = "restart"
    """The failure is logged and counted. The job runs again after a backoff."""
    FAIL_OWNER = "fail_owner"
    """The owner fails: its health becomes NOT_SERVING, and the process ends with exit code 1. `report` gets the error
    too, so that waiting callers can be given it."""
    REPORT = "report"
    """The error goes to the one rollout, stream or call that the job works for. Nothing else fails."""
    RAISE = "raise"
    """The error is raised in the task that awaits the job."""


Kind = Literal["task", "thread", "timer", "callback"]


@dataclass(frozen=True, slots=True)
class Job:
    """A kind of background work. Declare one with job()."""

    name: str
    """PACKAGE.WORK, for example engine.sweep. It appears in log lines, and as a label of the failure counter."""
    on_failure: OnFailure
    kind: Kind = "task"


_declared: dict[str, Job] = {}
_faults: dict[str, BaseException] = {}


def job(name: str, on_failure: OnFailure, kind: Kind = "task") -> Job:
    """Declare a kind of background work. Call it at import. Raises ValueError if the name is in use."""
    if name in _declared:
        raise ValueError(f"job {name} is declared twice")
    made = _declared[name] = Job(name, on_failure, kind)
    return made


def declared() -> Mapping[str, Job]:
    """Return all jobs of the imported modules, by name."""
    return MappingProxyType(_declared)


def inject(name: str, error: BaseException) -> None:
    """Make the next run of a job raise `error`. For tests."""
    if name not in _declared:
        raise KeyError(f"no job is called {name}")
    _faults[name] = error


def injected(ran: Job) -> BaseException | None:
    """Remove and return the error that inject() has set for this job, or None."""
    return _faults.pop(ran.name, None) if _faults else None


def raise_injected(ran: Job) -> None:
    """Remove and raise the error that inject() has set for this job, if any."""
    if _faults and ran.name in _faults:
        raise _faults.pop(ran.name)
