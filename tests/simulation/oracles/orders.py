"""The oracle of linearizability: Init, Cancel and Complete have an order that explains their answers."""

from collections.abc import Iterator

from tests.simulation.linearizability import Undecided, stuck_at
from tests.simulation.oracles.evidence import Evidence, Finding
from tests.simulation.specifications import AtServer, AtTrainer, Calls, at_server, at_trainer, calls_of


def linearizable(evidence: Evidence) -> Iterator[Finding]:
    """Each rollout's calls at a server, and at a trainer, could have come one after the other.

    Without a working disk a server and a trainer promise less: those with disk faults are left out.
    """
    servers, trainers = calls_of(evidence)
    for found, initial, step in (
        *((one, AtServer(), at_server) for one in servers),
        *((one, AtTrainer(), at_trainer) for one in trainers),
    ):
        if evidence.disk_failed(found.who):
            continue
        try:
            stuck = stuck_at(found.calls, initial, step)
        except Undecided:
            evidence.undecided += 1
            continue
        if stuck is not None:
            yield Finding("linearizable", found.rollout, _text(found, len(stuck)))


def _text(found: Calls, left: int) -> str:
    calls = "\n".join(f"    {call}" for call in sorted(found.calls, key=lambda call: call.began))
    return f"the calls at {found.who} have no order; {left} are left over of\n{calls}"
