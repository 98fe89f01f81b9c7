"""The sequential specifications of Init, Cancel and Complete, for one rollout, and the calls of a history.

At a server a rollout is a set of attempts with their specs and phases, and a cancel that may wait for its Init:

- `maybe`: an Init was answered with an error after which the caller has to ask again; it may have been accepted.
- `live`, then `decided` (it ends, and a cancel comes too late, though a crash can take that back), or `cancelled` (an
  answered cancel holds, also after a crash), then `over`. `superseded`: a higher attempt ends it without an outcome.

At a trainer a rollout is the newest attempt, and the result that was recorded for it. `drop`: the trainer has died
after the end of an attempt without a result, so that it may know only the newest result. `forget`: it may know nothing.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.simulation.history import Record
from tests.simulation.linearizability import NEVER, Call
from tests.simulation.oracles.evidence import Evidence
from tests.simulation.oracles.forgetting import drops, expiries

ANY_ATTEMPT = 2**32
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "DEADLINE_EXCEEDED"}


class Attempt(NamedTuple):
    """One attempt at a server."""

    number: int
    spec: str
    phase: str


class AtServer(NamedTuple):
    """A rollout at one server. `tombstone` is the highest attempt that a cancel waits for."""

    attempts: tuple[Attempt, ...] = ()
    tombstone: int = 0


class AtTrainer(NamedTuple):
    """A rollout at its trainer: its newest attempt and its result, and the newest attempt that has a result."""

    newest: int = 0
    result: str = ""
    recorded: tuple[int, str] = (0, "")


def at_server(state: Hashable, call: Call) -> Iterable[Hashable]:
    """The specification of Init, Cancel, the end of an attempt, and the faults of a server."""
    assert isinstance(state, AtServer)
    return SERVER_STEPS[call.name](state, call)


def at_trainer(state: Hashable, call: Call) -> Iterable[Hashable]:
    """The specification of Complete, and of the start of a higher attempt."""
    assert isinstance(state, AtTrainer)
    if call.name == "forget":
        return [AtTrainer()]
    if call.name == "drop":
        return [AtTrainer(*state.recorded, state.recorded)]
    attempt, result = call.argument
    if call.name == "begin":
        return [AtTrainer(attempt, "", state.recorded)] if attempt > state.newest else [state]
    if call.ended == NEVER:
        recorded = AtTrainer(attempt, result, (attempt, result))
        return [recorded] if attempt > state.newest or (attempt == state.newest and not state.result) else [state]
    if call.result == "ABORTED":
        return [state] if attempt < state.newest else []
    if attempt < state.newest:
        return []
    known = state.result if attempt == state.newest else ""
    if call.result == "RECORDED":
        return [] if known else [AtTrainer(attempt, result, (attempt, result))]
    if call.result == "ALREADY_RECORDED":
        return [state] if known == result else []
    if call.result == "CONFLICT":
        return [state] if known and known != result else []
    return [state]  # another refusal has no effect


def _with(state: AtServer, *changed: Attempt) -> AtServer:
    kept = {attempt.number: attempt for attempt in state.attempts} | {attempt.number: attempt for attempt in changed}
    return state._replace(attempts=tuple(sorted(kept.values())))


def _init(state: AtServer, call: Call) -> Iterator[Hashable]:
    number, spec = call.argument
    highest = state.attempts[-1] if state.attempts else None
    known = highest if highest is not None and highest.number == number else None
    absent = highest is None or highest.number < number or (known is not None and known.phase == "maybe")
    if call.result == "ABORTED":
        if highest is not None and highest.number > number:
            yield state
        return
    if call.result == "ALREADY_EXISTS":
        if known is not None and known.spec != spec:
            yield state
        return
    if call.ended != NEVER and call.result[0] != "OK":
        yield state
        return
    if absent and (call.ended == NEVER or call.result[1]):
        cancelled = state.tombstone >= number
        begun = _with(_superseded(state, number), Attempt(number, spec, "cancelled" if cancelled else "live"))
        yield begun._replace(tombstone=0) if cancelled else begun
    if call.ended == NEVER and absent:
        yield _with(state, Attempt(number, spec, "maybe"))
    if known is not None and known.spec == spec and (call.ended == NEVER or not call.result[1]):
        yield state if known.phase != "maybe" else _with(state, known._replace(phase="live"))


def _cancel(state: AtServer, call: Call) -> Iterator[Hashable]:
    number = call.argument
    known = state.attempts[-1] if state.attempts else None
    if call.ended == NEVER:  # it may have had each effect
        yield state._replace(tombstone=max(state.tombstone, number or ANY_ATTEMPT))
        if known is not None and known.phase in ("live", "maybe") and (not number or number >= known.number):
            yield _with(state, known._replace(phase="cancelled"))
        return
    if not isinstance(call.result, tuple):
        yield state
        return
    disposition, rollout_state = call.result
    if known is None or known.phase == "maybe":
        if disposition == "UNKNOWN":
            yield state._replace(tombstone=max(state.tombstone, number or ANY_ATTEMPT))
        if known is None:
            return
    if number and number < known.number:
        if disposition in ("UNKNOWN", "ALREADY_ENDED"):
            yield state
        return
    if number > known.number:
        state = state._replace(tombstone=max(state.tombstone, number))
    if disposition == "CANCELLED" and known.phase in ("live", "maybe", "cancelled"):
        yield _with(state, known._replace(phase="cancelled"))
    elif known.phase == "superseded":
        yield state
    elif disposition == "ALREADY_ENDED" and rollout_state in ENDED:
        if known.phase == "over":
            yield state
        elif known.phase in _may_end(rollout_state):  # its outcome reached no trainer, so no call shows its end
            yield _with(state, known._replace(phase="over"))
    elif disposition == "ALREADY_ENDED" and known.phase in ("live", "maybe", "decided"):
        yield _with(state, known._replace(phase="decided"))


def _end(state: AtServer, call: Call) -> Iterator[Hashable]:
    number, status = call.argument
    for attempt in state.attempts:
        if attempt.number == number and attempt.phase in (*_may_end(status), "superseded"):
            yield _with(state, attempt._replace(phase="over"))


def _may_end(status: str) -> tuple[str, ...]:
    """Returns the phases in which an attempt can end with a status."""
    return ("cancelled",) if status == "CANCELLED" else ("live", "decided", "maybe")


def _supersede(state: AtServer, call: Call) -> Iterator[Hashable]:
    yield _superseded(state, call.argument)


def _superseded(state: AtServer, number: int) -> AtServer:
    """Returns the state after the end of all attempts below a number."""
    below = [a for a in state.attempts if a.number < number and a.phase != "over"]
    return _with(state, *(attempt._replace(phase="superseded") for attempt in below))


def _crash(state: AtServer, call: Call) -> Iterator[Hashable]:
    yield state._replace(
        attempts=tuple(a._replace(phase="live") if a.phase == "decided" else a for a in state.attempts)
    )


def _forget(state: AtServer, call: Call) -> Iterator[Hashable]:
    yield AtServer()


SERVER_STEPS = {
    "Init": _init,
    "Cancel": _cancel,
    "end": _end,
    "supersede": _supersede,
    "crash": _crash,
    "forget": _forget,
}


class Calls(NamedTuple):
    """The calls of one rollout at one process."""

    who: str
    rollout: str
    calls: Sequence[Call]


def calls_of(evidence: Evidence) -> tuple[list[Calls], list[Calls]]:
    """Returns the calls at servers and the calls at trainers, for each rollout."""
    servers: dict[tuple[str, str], list[Record]] = {}
    trainers: dict[tuple[str, str], list[Record]] = {}
    for record in evidence.by_op["called"]:
        at = trainers if record["method"] == "Complete" else servers
        at.setdefault((record["to"], record.rollout), []).append(record)
    ends: dict[tuple[str, str], dict[str, Record]] = {}
    """The first report of each result, by result id, for each rollout at a server."""
    for record in evidence.by_op["called"]:
        if record["method"] == "Complete":
            ends.setdefault((record.who, record.rollout), {}).setdefault(record["argument"][0], record)
    found_servers = []
    for (who, rollout), asked in servers.items():
        if rollout:
            own = _server_calls(asked, evidence.answers, ends.get((who, rollout), {}))
            # A cancel of a group, of a prefix or of everything may have met this rollout, or not.
            broad = (Call("Cancel", 0, "", record.number) for record in servers.get((who, ""), ()))
            # The trainer's answer to a chat tells a server of a higher attempt, also before its Init is sent.
            higher = {record.attempt for record in _begins(evidence, rollout) if record.attempt > 1}
            refused = (r for r in evidence.ops_of(rollout, "chat raised") if r["error"] == "Aborted")
            higher |= {record.attempt + 1 for record in refused}
            elsewhere = (Call("supersede", attempt, "", 0) for attempt in sorted(higher))
            found_servers.append(Calls(who, rollout, [*own, *broad, *elsewhere, *_faults(evidence, who)]))
    found_trainers = [
        Calls(who, rollout, [*(_complete(r, evidence.answers) for r in asked), *_at_trainer(evidence, who, rollout)])
        for (who, rollout), asked in trainers.items()
    ]
    return found_servers, found_trainers


def _begins(evidence: Evidence, rollout: str) -> list[Record]:
    """Returns the records that show that a trainer has begun an attempt."""
    found = evidence.ops_of(rollout, "called", "submitted", "asks to supersede", "applied")
    return [record for record in found if record.op != "called" or record["method"] == "Init"]


def _at_trainer(evidence: Evidence, who: str, rollout: str) -> Iterator[Call]:
    for record in _begins(evidence, rollout):
        if record.who == who:
            yield Call("begin", (record.attempt, ""), "", 0, record.number)
    unsent = _unsent(evidence, who, rollout)
    yield from (Call("begin", (attempt, ""), "", 0) for attempt in unsent.values())
    if who in evidence.forgetful:
        yield from _faults(evidence, who)
        return
    yield from (Call("drop", "", "", death) for death in sorted({*drops(evidence, rollout), *unsent}))
    yield from (Call("forget", "", "", start) for start in expiries(evidence, rollout))


def _unsent(evidence: Evidence, who: str, rollout: str) -> dict[int, int]:
    """Returns the attempts that a trainer has begun by itself and lost with its death, before it sent or stored them.

    Its refusal of a lower attempt's outcome shows such an attempt. The keys are the deaths, by number.
    """
    found = {}
    shown = [(record.number, record.attempt) for record in _begins(evidence, rollout) if record.who == who]
    for record in evidence.ops_of(rollout, "answered"):
        if record["method"] == "Complete" and record["status"] == "ABORTED":
            death = next((death.number for death in evidence.deaths(who) if death.number > record.number), None)
            if death is not None and not any(n < death and attempt > record.attempt for n, attempt in shown):
                found[death] = record.attempt + 1
    return found


def _server_calls(asked: Iterable[Record], answers: Mapping[int, Record], ends: Mapping[str, Record]) -> Iterator[Call]:
    first: dict[int, int] = {}
    numbers: dict[int, int] = {}
    for record in asked:
        numbers[record["call"]] = record.number
        answer = answers.get(record["call"])
        ended = NEVER if answer is None else answer.number
        if record["method"] == "Init":
            first.setdefault(record.attempt, record.number)
            result = None
            if answer is not None:
                result = ("OK", *answer["value"]) if answer["status"] == "OK" else (answer["status"],)
                if result[0] in ("ABORTED", "ALREADY_EXISTS"):
                    result = result[0]
            yield Call("Init", (record.attempt, record["argument"]), result, record.number, ended)
        else:
            ok = answer is not None and answer["status"] == "OK"
            # One answer may be that of a cancel or of its repetition. The other one may have its effect before.
            began = numbers[record["argument"][1]] if record["argument"] else record.number
            yield Call("Cancel", record.attempt, answer["value"] if ok and answer else "", began, ended)
    for record in ends.values():
        yield Call("end", (record.attempt, record["argument"][1]), "", first.get(record.attempt, 0), record.number)


def _complete(record: Record, answers: Mapping[int, Record]) -> Call:
    answer = answers.get(record["call"])
    argument = (record.attempt, record["argument"][0])
    if answer is None:
        return Call("Complete", argument, None, record.number)
    result = answer["value"] if answer["status"] == "OK" else answer["status"]
    return Call("Complete", argument, result, record.number, answer.number)


def _faults(evidence: Evidence, who: str) -> Iterator[Call]:
    for record in evidence.deaths(who):
        name = "forget" if who in evidence.forgetful or record.op == "forget" else "crash"
        yield Call(name, "", "", record.number, record.number)
