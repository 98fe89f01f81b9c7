"""An ablation switches one safeguard of the product off during a run, by a patch from the side of the tests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tests.simulation.plan import Plan

Replace = Callable[[Any], Any]
"""Takes the product's function and returns the one that stands there during the run."""


@dataclass(frozen=True, slots=True)
class Ablation:
    """One safeguard that a test can switch off."""

    name: str
    breaks: str
    """What goes wrong without it."""
    owner: Any
    function: str
    replace: Replace
    needs: tuple[str, ...]
    """The faults, conditions and transports without which the fault cannot show: other seeds are not run."""

    def can_show(self, plan: Plan) -> bool:
        """Returns whether a world with this plan has what the fault needs."""
        has = {*plan.faults, *plan.conditions, *(trainer.transport for trainer in plan.trainers)}
        return has.issuperset(self.needs)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Switches the safeguard off."""
        with patch.object(self.owner, self.function, self.replace(getattr(self.owner, self.function))):
            yield


TABLE: dict[str, Ablation] = {}
"""All ablations by name."""


def without(name: str, owner: Any, function: str, breaks: str, *needs: str) -> Callable[[Replace], Replace]:
    """Adds an ablation. The decorated function takes the product's function and returns its replacement."""

    def add(replace: Replace) -> Replace:
        assert hasattr(owner, function), f"{owner} has no {function}"
        TABLE[name] = Ablation(name, breaks, owner, function, replace, needs)
        return replace

    return add


def nothing(original: Any) -> Any:
    """Replaces a method by one that does nothing."""
    return lambda *args, **named: None
