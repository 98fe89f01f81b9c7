"""Oracles of rollouts on servers: attempts, runs, events, windows, slots, and the end of everything."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator

from tests.simulation.history import Record
from tests.simulation.operations import OPERATIONS
from tests.simulation.oracles.evidence import DEATHS, Evidence, Finding
from tests.simulation.oracles.forgetting import begun_anew, expired_between

STOPPING = 10.0
"""A superseded attempt gets no further reply after so many simulated seconds."""
OVER = ("returned", "raised", "stopped agent")
"""The operations that end a run of an agent."""
HEALING = 45.0
"""So many simulated seconds after a fault, both ends of a broken connection have a new one."""
READING = 60.0
"""A reader has all events of an ended rollout after so many simulated seconds without faults."""
QUIET = 1500.0
"""After the last fault, everything ends within so many simulated seconds.

It is longer than `lost_after`, `trainer_grace` and the longest pause of an outbox together."""


def attempts_rise(evidence: Evidence) -> Iterator[Finding]:
    """No agent of an attempt starts on a server that has started a higher attempt of the rollout."""
    highest: dict[tuple[str, str], Record] = {}
    sent: set[tuple[str, str, int]] = set()
    for record in evidence.records:
        if record.op == "forget" or (record.op in DEATHS and record.who in evidence.forgetful):
            highest = {key: value for key, value in highest.items() if key[0] != record.who}
        elif record.op == "run":
            before = highest.get((record.who, record.rollout))
            if before is not None and before.attempt > record.attempt and not _both_forgot(evidence, before, record):
                yield Finding("attempts rise", record.rollout, "an older attempt starts", (before, record))
            else:
                highest[record.who, record.rollout] = record
        elif record.op == "got":
            newer = highest.get((record.who, record.rollout))
            if newer is not None and record.attempt < newer.attempt and record.time > newer.time + STOPPING:
                yield Finding("attempts rise", record.rollout, "a superseded attempt runs on", (newer, record))
        elif record.op == "called" and record["method"] == "Complete":
            key = record.who, record.rollout, record.attempt
            newer = highest.get(key[:2])
            late = newer is not None and record.attempt < newer.attempt and record.time > newer.time + STOPPING
            if newer is not None and late and key not in sent:
                yield Finding("attempts rise", record.rollout, "a superseded attempt sends an outcome", (newer, record))
            sent.add(key)


def _both_forgot(evidence: Evidence, before: Record, record: Record) -> bool:
    """Returns whether a trainer without a ledger and a server with a full disk have forgotten the higher attempt.

    A server whose commit failed has delivered from memory. When it ends, it may not know the rollout any more.
    """
    failed = (one.number for one in evidence.by_op["commit failed"] if one.who == f"disk of {record.who}")
    unwritten = any(before.number < number < record.number for number in failed)
    died = evidence.died_between(record.who, before.number, record.number)
    return unwritten and died and evidence.was_forgotten(record.rollout, record.number)


def one_run(evidence: Evidence) -> Iterator[Finding]:
    """An attempt runs once at a time, and a second time only after its server died, or forgot it.

    A server that starts again goes on with what it began before.
    """
    running: dict[tuple[str, int], Record] = {}
    ended: dict[tuple[str, int], Record] = {}
    for record in evidence.records:
        key = record.rollout, record.attempt
        if record.op == "run":
            before = running.get(key) or ended.get(key)
            running[key] = record
            if before is None or evidence.was_forgotten(record.rollout, record.number):
                continue
            elsewhere = before.who != record.who
            if not elsewhere and evidence.died_between(before.who, before.number, record.number):
                continue
            if expired_between(evidence, record.rollout, before, record):
                continue
            what = "two servers run one attempt" if elsewhere else "one process runs an attempt twice"
            yield Finding("one run", record.rollout, what, (before, record))
        elif record.op in OVER and key in running:
            ended[key] = running.pop(key)


def delivered_once(evidence: Evidence) -> Iterator[Finding]:
    """The outcomes of one attempt come from one server, unless its trainer has forgotten the first after `ttl`."""
    senders: dict[tuple[str, int], Record] = {}
    for record in evidence.by_op["answered"]:
        if record["method"] == "Complete" and record["value"] in ("RECORDED", "ALREADY_RECORDED"):
            sent = evidence.calls[record["call"]]
            first = senders.setdefault((sent.rollout, sent.attempt), sent)
            if first.who == sent.who or evidence.was_forgotten(sent.rollout, sent.number):
                continue
            if not expired_between(evidence, sent.rollout, first, sent):
                yield Finding("delivered once", sent.rollout, "two servers delivered one attempt", (first, sent))


def events_without_gaps(evidence: Evidence) -> Iterator[Finding]:
    """Each reader sees consecutive event numbers, and two readers see the same event under a number."""
    last: dict[tuple[str, int, object], Record] = {}
    kinds: dict[tuple[str, int, int], Record] = {}
    for record in evidence.records:
        if record.op == "events begin":
            last[record.rollout, 0, record["reader"]] = record
        elif record.op == "event":
            begin = last.get((record.rollout, 0, record["reader"]))
            own = record.rollout, record.attempt, record["reader"]
            before = last.get(own)
            expected = before["number"] + 1 if before is not None else begin["number"] if begin is not None else 1
            if record["number"] != expected:
                what = f"reader {record['reader']} sees event {record['number']} instead of {expected}"
                shown = tuple(r for r in (before or begin, record) if r is not None)
                yield Finding("events without gaps", record.rollout, what, shown)
            last[own] = record
            same = kinds.setdefault((record.rollout, record.attempt, record["number"]), record)
            forgot = any(evidence.forgot_between(who, same.number, record.number) for who in evidence.settings)
            forgot = forgot or expired_between(evidence, record.rollout, same, record)
            forgot = forgot or begun_anew(evidence, record.rollout, record.attempt, same.number)
            if same["kind"] != record["kind"] and not forgot:
                yield Finding("events without gaps", record.rollout, "an event has changed", (same, record))
    for record in evidence.by_op["in journal"]:
        first, newest, count = record["events"]
        if count and (first != 1 or newest != count):
            what = f"the journal has {count} events, numbered {first} to {newest}"
            yield Finding("events without gaps", record.rollout, what, (record,))


def readers_reach_the_end(evidence: Evidence) -> Iterator[Finding]:
    """A reader that outlives its rollout by a minute sees the rollout's end, if its trainer lives.

    A reader that gets an error does not read on when its rollout has ended.
    """
    readers: dict[str, Record] = {}
    seen: set[object] = set()
    ends: dict[str, Record] = {}
    for record in evidence.records:
        if record.op == "events begin":
            readers[record.rollout] = record
        elif record.op == "events failed":
            readers.pop(record.rollout, None)
        elif record.op == "event" and record["kind"] in ("Ended", "Delivered"):
            seen.add(record["reader"])
        elif record.op == "applied":
            ends[record.rollout] = record
        elif record.op == "close":
            for rollout, begun in readers.items():
                end = ends.get(rollout)
                if end is None or begun.who != record.who or begun["reader"] in seen or begun.number > end.number:
                    continue
                servers = {run.who for run in evidence.ops_of(rollout, "run")}
                servers |= {c.who for c in evidence.ops_of(rollout, "called") if c["method"] == "Complete"}
                if not end["result"] or any(evidence.disk_failed(who) or who in evidence.forgetful for who in servers):
                    continue  # its events may be lost
                lived = evidence.life(record.who, begun.number) == evidence.life(record.who, record.number) - 1
                if lived and begun.attempt == end.attempt and record.time > end.time + READING:
                    what = f"reader {begun['reader']} never saw the end"
                    yield Finding("readers reach the end", rollout, what, (begun, end, record))


def windows_kept(evidence: Evidence) -> Iterator[Finding]:
    """No server has more chats open than its trainer's window allows."""
    for record in evidence.by_op["beyond window"]:
        yield Finding("windows kept", record.rollout, f"{record.who} exceeds the window of {record['to']}", (record,))


def within_capacity(evidence: Evidence) -> Iterator[Finding]:
    """No server runs more agents than it has slots for, and no queue is longer than its bound.

    A restarted server continues all its rollouts, and an owner below its even share gets a slot beyond the limit.
    """
    for record in evidence.by_op["capacity"]:
        settings = evidence.settings.get(record.who, {})
        owners, most = settings.get("owners", 1), record["max_concurrent"]
        if record["running"] > most + (owners - 1) * -(-most // owners):
            yield Finding("within capacity", "", f"{record.who} runs more than it has slots for", (record,))
        restored = evidence.life(record.who, record.number)
        places = record["max_queued"] + most
        if record["queued"] > places + (owners - 1) * -(-places // owners) and not restored:
            yield Finding("within capacity", "", f"the queue of {record.who} is longer than its bound", (record,))


def nothing_left(evidence: Evidence) -> Iterator[Finding]:
    """At the end no slot, queue, task, attachment or outcome is left anywhere."""
    for record in evidence.by_op["left"]:
        if record["count"]:
            yield Finding(
                "nothing left", record.rollout, f"{record.who}: {record['count']} {record['what']}", (record,)
            )


def everything_ends(evidence: Evidence) -> Iterator[Finding]:
    """When faults stop, every rollout ends within a bound of simulated time."""
    over = evidence.by_op["faults over"]
    if not over:
        return
    ends: dict[str, Record] = {}
    submitted: dict[str, Record] = {}
    for record in evidence.records:
        if record.op == "submitted":
            submitted[record.rollout] = record
        elif record.op in ("applied", "refused", "given up"):
            ends[record.rollout] = record
    for rollout, asked in submitted.items():
        since = max(asked.time, over[0].time)
        end = ends.get(rollout)
        if end is None or end.time > since + QUIET:
            text = "never" if end is None else f"{end.time - since:.0f} s after the last fault"
            yield Finding("everything ends", rollout, f"it ended {text}", (asked, over[0]))


def ends_without_agent(evidence: Evidence) -> Iterator[Finding]:
    """An outcome does not wait for an agent that ignores its cancels, when no fault can delay the outcome."""
    ignored = {record["run"]: record for record in reversed(evidence.by_op["cancel ignored"])}
    if not ignored:
        return
    over = {record["run"]: record for op in OVER for record in evidence.by_op[op]}
    outcomes: dict[tuple[str, int], Record] = {}
    for call in evidence.by_op["called"]:
        if call["method"] == "Complete":
            outcomes.setdefault((call.rollout, call.attempt), call)
    faults = [record.time for record in evidence.records if OPERATIONS[record.op].fault]
    for run, cancel in ignored.items():
        end, outcome = over.get(run), outcomes.get((cancel.rollout, cancel.attempt))
        if end is None or outcome is None or outcome.who != cancel.who:
            continue
        if bisect_left(faults, cancel.time - HEALING) != bisect_right(faults, end.time):
            continue
        if outcome.number > end.number and outcome.time > cancel.time + STOPPING:
            yield Finding("ends without agent", cancel.rollout, "its end waits for its agent", (cancel, outcome))


def runs_stop(evidence: Evidence) -> Iterator[Finding]:
    """At the end no agent runs: each has returned, raised, been stopped, or died with its server."""
    open_runs: dict[object, Record] = {}
    for record in evidence.records:
        if record.op == "run":
            open_runs[record["run"]] = record
        elif record.op in OVER:
            open_runs.pop(record["run"], None)
    last = evidence.records[-1].number if evidence.records else 0
    by_server: dict[str, int] = defaultdict(int)
    for record in open_runs.values():
        if not evidence.died_between(record.who, record.number, last):
            by_server[record.who] += 1
            yield Finding("runs stop", record.rollout, "its agent still runs at the end", (record,))
