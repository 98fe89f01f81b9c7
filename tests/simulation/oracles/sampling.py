"""Oracles of chats: each is sampled once, has one reply, and its tokens come out as they were sampled."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from tests.simulation.faults import SLOWEST_COMMIT
from tests.simulation.history import Record
from tests.simulation.oracles.evidence import ChatName, Evidence, Finding, chat_name
from tests.simulation.oracles.forgetting import expired_between

COMMITTED = 3 * SLOWEST_COMMIT
"""A reply is in the ledger after so many simulated seconds, if the disk works: it waits for a running commit and its
report, and is in the next commit."""
LONGEST_RETRY_AFTER = 1.0
"""A trainer asks for a pause of at most so many seconds before a chat is sent again."""
LOGPROB_DIGITS = 4
"""Logprobs are float32, and are compared to so many digits."""


def sampled_once(evidence: Evidence) -> Iterator[Finding]:
    """A chat is sampled once while its trainer lives, unless its sampling failed or was abandoned.

    A trainer with a ledger does not sample it again after its death either, if an agent has got the reply, or if the
    trainer had it long enough before to commit it.
    """
    got = {record["draw"]: record.number for record in reversed(evidence.by_op["got"])}
    replied = {record["draw"]: record for record in evidence.by_op["replied"]}
    without_reply = {record["draw"] for op in ("policy failed", "policy cancelled") for record in evidence.by_op[op]}
    sampled: dict[tuple[str, ChatName], list[Record]] = defaultdict(list)
    for record in evidence.by_op["sampled"]:
        sampled[record.who, chat_name(record)].append(record)
    for (who, name), records in sampled.items():
        for first, second in pairwise(records):
            if first["draw"] in without_reply or evidence.disk_failed(who):
                continue
            died = evidence.died_between(who, first.number, second.number)
            reply = replied.get(first["draw"])
            if died and (who in evidence.forgetful or reply is None):
                continue
            arrived = evidence.died_between(who, got.get(first["draw"], second.number), second.number)
            soon = reply is not None and evidence.seconds_to_death(who, reply) < COMMITTED
            if (died and soon and not arrived) or expired_between(evidence, name[0], first, second):
                continue
            yield Finding("sampled once", name[0], f"{who} samples a chat twice", (first, second))


def one_reply(evidence: Evidence) -> Iterator[Finding]:
    """The agents of an attempt get one reply to a chat, however often they run, and one that was sampled for it."""
    draws = {(chat_name(record), record["draw"]): record for record in evidence.by_op["replied"]}
    first: dict[ChatName, Record] = {}
    for record in evidence.by_op["got"]:
        name = chat_name(record)
        before = first.setdefault(name, record)
        if before["draw"] != record["draw"]:
            first[name] = record
            forgot = evidence.was_forgotten(record.rollout, record.number)
            if not forgot and not expired_between(evidence, record.rollout, before, record):
                yield Finding("one reply", record.rollout, "a chat has two replies", (before, record))
        reply = draws.get((name, record["draw"]))
        if reply is None or reply.number > record.number:
            yield Finding("one reply", record.rollout, "a reply was never sampled for this chat", (record,))


def replayed_at_once(evidence: Evidence) -> Iterator[Finding]:
    """An agent that runs again gets the replies that are in its server's journal without its trainer.

    The server may first have to read the tokens of earlier chats, after it has written what waits.
    """
    asked: dict[tuple[str, ChatName], Record] = {}
    got: dict[tuple[str, ChatName], Record] = {}
    records = (record for op in ("asked", "got", "chat raised") for record in evidence.by_op[op])
    for record in sorted(records, key=lambda record: record.number):
        who, name = record.who, (record.who, chat_name(record))
        if record.op == "asked":
            asked[name] = record
            continue
        before, question = got.get(name), asked.get(name)
        if record.op == "got":
            got[name] = record
        elif record["error"] != "Unavailable":
            continue
        if before is None or question is None or before["run"] == record["run"]:
            continue
        kept = evidence.seconds_to_death(who, before) >= COMMITTED and not evidence.disk_failed(who)
        late = record.op != "got" or evidence.seconds(who, question, record) > COMMITTED
        if kept and late and not evidence.lost_its_disk(who, before.number, record.number):
            yield Finding("replayed at once", record.rollout, "a recorded reply comes late", (before, record))


def patient(evidence: Evidence) -> Iterator[Finding]:
    """A server waits for a trainer that is away: for the grace period, in chats and between them.

    A chat that cannot be answered now is sent again until the grace period ends.
    The next try would begin after that. So the error comes at most one pause earlier.
    """
    asked: dict[tuple[object, str, int], Record] = {}
    for record in evidence.by_op["asked"]:
        asked.setdefault((record["run"], record["sample"], record["chat"]), record)
    for record in evidence.by_op["chat raised"]:
        begun = asked.get((record["run"], record["sample"], record["chat"]))
        settings = evidence.settings.get(record.who, {})
        if begun is None or record["error"] != "Unavailable" or "trainer_grace" not in settings:
            continue
        least = settings["trainer_grace"] - max(settings["retry_delay"][1], LONGEST_RETRY_AFTER)
        if record.time - begun.time < least:
            after, grace = record.time - begun.time, settings["trainer_grace"]
            what = f"a chat fails after {after:.1f} s, and its trainer has {grace} s"
            yield Finding("patient", record.rollout, what, (begun, record))
    yield from _ended_early(evidence)


def _ended_early(evidence: Evidence) -> Iterator[Finding]:
    """Yields the rollouts that end for the loss of a trainer that has answered a chat within the grace period.

    A trainer without a ledger says so when it leaves for good, and its rollouts end at once.
    """
    for end in evidence.by_op["applied"]:
        if end["reason"] != "trainer_lost" or end.who in evidence.forgetful:
            continue
        first = {record["draw"]: record for record in reversed(evidence.ops_of(end.rollout, "got"))}
        for got in first.values():
            grace = evidence.settings.get(got.who, {}).get("trainer_grace", 0.0)
            if got.attempt == end.attempt and 0.0 <= end.time - got.time < grace:
                what = f"its trainer is lost {end.time - got.time:.1f} s after a reply, and has {grace} s"
                yield Finding("patient", end.rollout, what, (got, end))
                break


def no_late_sampling(evidence: Evidence) -> Iterator[Finding]:
    """No chat of an attempt is sampled after its trainer has begun a higher attempt, or has applied its outcome."""
    ended: dict[tuple[str, str], Record] = {}
    for record in evidence.records:
        key = record.who, record.rollout
        begun = record.op == "called" and record["method"] == "Init"
        if begun or record.op == "applied":
            before = ended.get(key)
            if before is None or _rank(record) > _rank(before):
                ended[key] = record
        elif record.op == "sampled" and (over := ended.get(key)) is not None:
            if evidence.forgot_between(record.who, over.number, record.number):
                continue
            if expired_between(evidence, record.rollout, over, record):
                continue
            higher, same = over.attempt > record.attempt, over.attempt == record.attempt
            if higher or (same and over.op == "applied"):
                what = f"attempt {record.attempt} is sampled after it was over"
                yield Finding("no late sampling", record.rollout, what, (over, record))


def _rank(record: Record) -> tuple[int, bool]:
    return record.attempt, record.op == "applied"


def abandoned_stops(evidence: Evidence) -> Iterator[Finding]:
    """A sampling whose reply nobody wants any more stops: none still runs when everything is over."""
    open_draws: dict[str, Record] = {}
    for record in evidence.records:
        if record.op == "sampled":
            open_draws[record["draw"]] = record
        elif record.op in ("replied", "policy failed", "policy cancelled"):
            open_draws.pop(record["draw"], None)
    last = evidence.records[-1].number if evidence.records else 0
    for record in open_draws.values():
        if not evidence.died_between(record.who, record.number, last):
            yield Finding("abandoned stops", record.rollout, "its sampling never ends", (record,))


def tokens_exact(evidence: Evidence) -> Iterator[Finding]:
    """The sampled tokens of each segment are those of its chats' replies, in order, and no chat is in two segments."""
    replied: dict[tuple[ChatName, str], Record] = {}
    for record in evidence.by_op["replied"]:
        replied[chat_name(record), record["draw"]] = record
    for record in evidence.by_op["applied"]:
        if record["status"] != "COMPLETED" or evidence.was_forgotten(record.rollout, record.number):
            continue
        returned = [r for r in evidence.ops_of(record.rollout, "returned") if r.attempt == record.attempt]
        ended = [r["run"] for r in returned if r.number < record.number]
        run = ended[-1] if ended else None  # another server may still run an attempt that was given up
        got = {chat_name(r): r["draw"] for r in evidence.ops_of(record.rollout, "got") if r["run"] == run}
        seen: set[tuple[str, int]] = set()
        for sample, chats, ids, logprobs in _segments(record):
            names = [(record.rollout, record.attempt, sample, chat) for chat in chats]
            replies = [replied.get((name, got.get(name, ""))) for name in names]
            if any(reply is None for reply in replies):
                yield Finding("tokens exact", record.rollout, f"{sample} has a chat that no agent got", (record,))
                continue
            wanted = [token for reply in replies if reply is not None for token in reply["ids"]]
            if list(ids) != wanted:
                what = f"the tokens of {sample} {chats} are not those of its replies"
                yield Finding("tokens exact", record.rollout, what, (record, *(r for r in replies if r is not None)))
            elif not _close(logprobs, [logprob_of(token) for token in wanted]):
                yield Finding("tokens exact", record.rollout, f"the logprobs of {sample} are others", (record,))
            if seen & {(sample, chat) for chat in chats}:
                yield Finding("tokens exact", record.rollout, f"a chat of {sample} is in two segments", (record,))
            seen |= {(sample, chat) for chat in chats}
        missing = {name[2:] for name in got} - seen
        if missing:
            what = f"the chats {sorted(missing)} are in no segment"
            yield Finding("tokens exact", record.rollout, what, (record,))


def _segments(record: Record) -> Iterator[tuple[str, tuple[int, ...], list[int], Sequence[float]]]:
    """Yield the sample, the chats, the sampled ids and their logprobs of each segment of an outcome."""
    for sample, segments in record["samples"]:
        for ids, mask_runs, chats, logprobs in segments:
            sampled, position = [], 0
            for index, length in enumerate(mask_runs):
                sampled += ids[position : position + length] if index % 2 else ()
                position += length
            yield sample, chats, list(sampled), logprobs


def logprob_of(token: int) -> float:
    """Returns the logprob that the policies of the simulation give to a token."""
    return -(token % 997 + 1) / 1000


def _close(found: Sequence[float], wanted: Sequence[float]) -> bool:
    return len(found) == len(wanted) and all(
        round(one - other, LOGPROB_DIGITS) == 0 for one, other in zip(found, wanted, strict=True)
    )
