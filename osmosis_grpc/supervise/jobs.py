"""The kinds of background work: their names, and what a failure of each one means."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Literal


class OnFailure(StrEnum):
    """What happens when a job raises."""

    RESTART = "restart"
    """It is logged and counted, and runs again after a backoff."""
    FAIL_OWNER = "fail_owner"
    """The owner has failed: health is NOT_SERVING, the process ends with exit code 1. `report` gets the error, too, and
    gives it to the waiting callers."""
    REPORT = "report"
    """The error goes to the one rollout, stream or call that the job works for; everything else goes on."""
    RAISE = "raise"
    """The error is raised in the task that awaits the job."""


Kind = Literal["task", "thread", "timer", "callback"]


@dataclass(frozen=True, slots=True)
class Job:
    """A kind of background work. Made by job()."""

    name: str
    """PACKAGE.WORK, for example engine.sweep: the label of its log lines and of its counter."""
    on_failure: OnFailure
    kind: Kind = "task"


_declared: dict[str, Job] = {}
_faults: dict[str, BaseException] = {}


def job(name: str, on_failure: OnFailure, kind: Kind = "task") -> Job:
    """Declare a kind of background work, at import. Raises ValueError for a name that is taken."""
    if name in _declared:
        raise ValueError(f"job {name} is declared twice")
    made = _declared[name] = Job(name, on_failure, kind)
    return made


def declared() -> Mapping[str, Job]:
    """All jobs of the modules that are imported, by name."""
    return MappingProxyType(_declared)


def inject(name: str, error: BaseException) -> None:
    """Make a job raise `error` once, the next time it runs. For tests of what a failure does."""
    if name not in _declared:
        raise KeyError(f"no job is called {name}")
    _faults[name] = error


def injected(ran: Job) -> BaseException | None:
    """Return what inject() was given for this job, once."""
    return _faults.pop(ran.name, None) if _faults else None


def raise_injected(ran: Job) -> None:
    """Raise what inject() was given for this job, once."""
    if _faults and ran.name in _faults:
        raise _faults.pop(ran.name)
