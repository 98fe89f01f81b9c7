"""One run of a case against either side: its links, its variables, and the comparison of received data."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from osmosis_grpc.testing.conformance.calls import Trace
from osmosis_grpc.testing.conformance.cases import Case, filled
from osmosis_grpc.testing.conformance.links import Failed, Link
from osmosis_grpc.testing.conformance.patterns import differences
from osmosis_grpc.testing.conformance.protobuf_data import CaseError, Data

Step = Mapping[str, Any]


class Run:
    """The state of a case while it runs. Subclasses make links, and know the side under test."""

    quiet = 0.0
    """How many seconds `none` waits for a frame that must not come."""

    def __init__(self, case: Case, mode: str, prefix: str, trace: Trace, saved: Data) -> None:
        self.case = case
        self.mode = mode
        self.prefix = prefix
        self.trace = trace
        self.saved = saved
        self.links: dict[str, Link] = {}
        self.rollout_id = ""

    def new_link(self, name: str, credential: str = "first") -> Link:
        """Return a link that is not open yet."""
        raise NotImplementedError

    def filled(self, data: Any) -> Any:
        """Replace the variables in data of the case by their values."""
        return filled(data, self.saved)

    async def guard(self, work: Any) -> Any:
        """Await work of a step."""
        return await work

    async def settle(self, link: Link) -> None:
        """Wait until the side under test has handled the frames so far, if there is a way to tell."""
        link.show()

    def owns(self, _frame: Any) -> bool:
        """Return whether a frame belongs to this case, not to an earlier case on the same stream."""
        return True

    def frame(self, data: Data) -> Data:
        """Complete the frame that a step gives."""
        return data

    def link(self, name: str = "main") -> Link:
        """Return a link of the case by its name. Raises CaseError."""
        if name not in self.links:
            raise CaseError(f"the case has opened no link {name}")
        return self.links[name]

    def link_of(self, step: Step) -> Link:
        """Return the link that a step names, or the main one."""
        return self.link(step.get("link", "main"))

    def add_link(self, name: str, credential: str = "first") -> Link:
        """Return a link of the case by its name. Make the link if it is new."""
        if name not in self.links:
            link = self.links[name] = self.new_link(name, credential)
            link.wait = self.case.wait or link.wait
        return self.links[name]

    def expect(self, what: str, expected: Any, got: Any) -> None:
        """Compare data. Raises Failed with the differences."""
        lines = list(differences(expected, got, self.saved))
        if lines:
            raise Failed("\n".join(f"{what}: {line.removeprefix(': ')}" for line in lines))

    async def close(self) -> None:
        """Close the links."""
        for link in self.links.values():
            with contextlib.suppress(Exception):
                async with asyncio.timeout(2):
                    await link.close()
