"""Shortens the traceback of what ends a loop over a trainer: Ctrl-C, or an exception of the policy."""

from collections.abc import Iterator
from types import TracebackType

from osmosis_grpc.trainer.chats.policy_errors import PolicyFailure

_OWN = ("osmosis_grpc.", "asyncio.", "concurrent.", "threading")
"""Modules between the caller's code and the policy's."""


def hide(trace: TracebackType | None, *, always: bool = False) -> None:
    """Remove the frames of this package, and asyncio's next to them, from a traceback.

    The frames of the caller and its policy stay. Other tracebacks are left unchanged unless `always` is set.
    """
    if not always and all(each.tb_frame.f_code is not PolicyFailure.reraise.__code__ for each in _each(trace)):
        return
    while trace is not None:
        if trace.tb_next is not None and _name(trace.tb_next).startswith(_OWN[0]):
            trace.tb_next = next((each for each in _each(trace.tb_next) if not _name(each).startswith(_OWN)), None)
        trace = trace.tb_next


def _each(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _name(trace: TracebackType) -> str:
    return str(trace.tb_frame.f_globals.get("__name__", ""))
