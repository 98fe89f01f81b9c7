"""The judge is judged, too: each oracle finds a history that breaks its promise, and none finds the good one."""

from pathlib import Path

import pytest

import osmosis_grpc
from tests.simulation.judge import ORACLES
from tests.simulation.oracles.logs import EXPLAINED
from tests.simulation.stories import (
    IDS,
    Change,
    again,
    call,
    changed,
    crash,
    good,
    late,
    logged,
    plus,
    run,
    sampling,
    segments_of,
    without,
)

FAILED = {"status": "FAILED", "boundary": "server", "reason": "restart"}
RESULT = ("x1", "COMPLETED")
FULL = {"store": "journal", "error": "the disk is full"}
UNWRITTEN, EXPIRED, LOST = EXPLAINED
PRODUCT = Path(osmosis_grpc.__file__).parent
IGNORED = plus(
    (60.0, "server-1", "run", {"rollout": "r2", "agent": "traveller", "run": 5}),
    (61.0, "server-1", "cancel ignored", {"rollout": "r2", "run": 5}),
    (121.0, "server-1", "returned", {"rollout": "r2", "run": 5, "reward": 1.0}),
    (
        121.1,
        "server-1",
        "called",
        {"rollout": "r2", "call": 7, "method": "Complete", "to": "trainer-1", "argument": ("x7", "CANCELLED")},
    ),
)
SECOND = {"sample": "main", "chat": 1, "run": 2}
AGAIN = run(3.6, "server-1", 2), plus((3.7, "server-1", "asked", SECOND))
BROKEN: dict[str, tuple[str, list[Change]]] = {
    "no outcome": ("nothing lost", [without("applied", "in journal")]),
    "two results": ("applied once", [again(2.35, "applied", result="x2")]),
    "again after a confirmation": ("applied once", [crash("trainer-1", 2.6), again(2.7, "applied")]),
    "recorded and not applied": ("recorded is applied", [changed("applied", result="x7")]),
    "recorded twice": ("recorded is applied", [call(3, 2.6, "server-1", "Complete", "trainer-1", RESULT, "RECORDED")]),
    "an old attempt": ("no old attempt", [again(2.2, "submitted", attempt=2)]),
    "completed without a run": ("fair end", [without("returned")]),
    "another reward": ("fair end", [changed("applied", reward=0.5)]),
    "cancelled by no caller": ("fair end", [changed("applied", status="CANCELLED")]),
    "failed without a fault": ("fair end", [changed("applied", **FAILED)]),
    "out of time": ("fair end", [changed("applied", status="DEADLINE_EXCEEDED")]),
    "a replayable one that failed": ("fair end", [changed("applied", **FAILED), crash("server-1", 1.75)]),
    "unsettled": ("delivered", [changed("in journal", settled=False)]),
    "two receipts": ("delivered", [changed("in journal", receipts=("RECORDED", "RECORDED"))]),
    "a credential": ("credentials gone", [plus((4.0, "server-1", "credentials", {}))]),
    "sampled twice": ("sampled once", [sampling(1.65, "d2")]),
    "two replies": (
        "one reply",
        [
            crash("server-1", 1.72),
            crash("trainer-1", 1.72),
            sampling(1.73, "d2"),
            run(1.74, "server-1", 2),
            again(1.745, "got", draw="d2", run=2),
        ],
    ),
    "a recorded reply comes late": (
        "replayed at once",
        [crash("server-1", 3.5), *AGAIN, plus((5.3, "server-1", "got", SECOND | {"draw": "d1"}))],
    ),
    "a recorded reply does not come": (
        "replayed at once",
        [crash("server-1", 3.5), *AGAIN, plus((3.8, "server-1", "chat raised", SECOND | {"error": "Unavailable"}))],
    ),
    "an invented reply": ("one reply", [changed("got", draw="d9")]),
    "sampled after its end": ("no late sampling", [crash("trainer-1", 2.6), sampling(2.7, "d2")]),
    "sampled after a newer attempt": (
        "no late sampling",
        [call(9, 1.41, "trainer-1", "Init", "server-1", "spec", (True,), attempt=2)],
    ),
    "a sampling for ever": ("abandoned stops", [without("replied")]),
    "other tokens": ("tokens exact", [changed("applied", samples=segments_of((1, 2, 3)))]),
    "other logprobs": ("tokens exact", [changed("applied", samples=segments_of(IDS, (1,), (0.0, 0.0, 0.0)))]),
    "a chat that no agent got": ("tokens exact", [changed("applied", samples=segments_of(IDS, (2,)))]),
    "a chat that is missing": ("tokens exact", [changed("applied", samples=())]),
    "a chat in two segments": ("tokens exact", [changed("applied", samples=(("main", segments_of(IDS)[0][1] * 2),))]),
    "an older attempt starts": ("attempts rise", [run(1.15, "server-1", 7, attempt=2)]),
    "two runs": ("one run", [run(1.25, "server-1", 2)]),
    "two servers run it": ("one run", [run(1.25, "server-2", 2)]),
    "two servers deliver it": (
        "delivered once",
        [call(5, 2.6, "server-2", "Complete", "trainer-1", RESULT, "ALREADY_RECORDED")],
    ),
    "a gap": ("events without gaps", [again(2.15, "event", number=4)]),
    "a changed event": (
        "events without gaps",
        [
            plus((2.5, "trainer-1", "events begin", {"reader": 2, "number": 2})),
            plus((2.6, "trainer-1", "event", {"reader": 2, "number": 2, "kind": "Resumed"})),
        ],
    ),
    "a reader that never ends": (
        "readers reach the end",
        [plus((1.9, "trainer-1", "events begin", {"reader": 3, "number": 1}), (90.0, "trainer-1", "close", {}))],
    ),
    "a chat fails at once": (
        "patient",
        [
            without("got", "replied"),
            changed("configured", settings=(("journal", True), ("trainer_grace", 8.0), ("retry_delay", (0.25, 5.0)))),
            plus((4.3, "server-1", "chat raised", {"sample": "main", "chat": 1, "run": 1, "error": "Unavailable"})),
        ],
    ),
    "a trainer is lost at once": (
        "patient",
        [
            changed("configured", settings=(("journal", True), ("ledger", True), ("trainer_grace", 8.0))),
            changed("applied", status="FAILED", boundary="trainer", reason="trainer_lost"),
            plus((2.0, "trainer-1", "close", {})),
        ],
    ),
    "a reply of the ledger is sampled again": ("sampled once", [crash("trainer-1", 3.5), sampling(3.6, "d2")]),
    "a reply that an agent has got is sampled again": (
        "sampled once",
        [crash("trainer-1", 1.75), sampling(1.77, "d2")],
    ),
    "a superseded attempt runs on": (
        "attempts rise",
        [run(1.65, "server-1", 7, attempt=2), again(20.0, "got", draw="d1")],
    ),
    "a gap in the journal": ("events without gaps", [changed("in journal", events=(1, 9, 8))]),
    "too many chats": (
        "windows kept",
        [plus((1.45, "server-1", "beyond window", {"chat": "main/1", "to": "trainer-1", "open": 4, "window": 4}))],
    ),
    "too many agents": ("within capacity", [changed("capacity", running=3)]),
    "too long a queue": ("within capacity", [changed("capacity", queued=5)]),
    "a slot": ("nothing left", [changed("left", count=1)]),
    "an end that comes late": ("everything ends", [late]),
    "an end that waits for its agent": ("ends without agent", [IGNORED]),
    "an agent for ever": (
        "runs stop",
        [plus((2.6, "server-1", "run", {"attempt": 2, "agent": "traveller", "run": 5}))],
    ),
    "cancelled and completed": (
        "linearizable",
        [call(3, 1.5, "trainer-1", "Cancel", "server-1", "", ("CANCELLED", "RUNNING"))],
    ),
    "started twice": ("linearizable", [call(3, 1.5, "trainer-1", "Init", "server-1", "spec", (True,))]),
    "an equal Init with another spec": (
        "linearizable",
        [call(3, 1.5, "trainer-1", "Init", "server-1", "other", (False,))],
    ),
    "an error of an unknown kind": ("errors explained", [logged("trainer-1", "%s failed", "a job failed")]),
    "an error of a disk that works": ("errors explained", [logged("server-1", UNWRITTEN, "the journal", time=2.0)]),
    "an error of a disk that fails later": (
        "errors explained",
        [
            logged("server-1", UNWRITTEN, "the journal", time=2.0),
            plus((2.1, "disk of server-1", "commit failed", FULL)),
        ],
    ),
    "an outcome that expires": ("errors explained", [logged("server-1", EXPIRED, EXPIRED % ("r1", 3), time=2.25)]),
    "a server with a journal that loses outcomes": (
        "errors explained",
        [plus((5.0, "server-1", "asked to stop", {})), logged("server-1", LOST, LOST % 3)],
    ),
    "another result is a repetition": (
        "linearizable",
        [call(3, 2.6, "server-1", "Complete", "trainer-1", ("x2", "COMPLETED"), "ALREADY_RECORDED")],
    ),
}


def test_a_good_history_has_no_finding():
    assert good().judged() == []


def test_an_error_with_its_fault_is_explained():
    story = plus((1.9, "disk of server-1", "commit failed", FULL))(good())
    logged("server-1", UNWRITTEN, "the journal", time=2.0)(story)
    logged("server-1", EXPIRED, EXPIRED % ("r1", 3))(story)
    story.add(0.0, "server-2", "configured", settings=(("journal", False),)).add(5.0, "server-2", "asked to stop")
    logged("server-2", LOST, LOST % 3)(story)
    assert story.judged() == []


def test_each_explained_error_is_a_text_of_the_product():
    texts = "".join(path.read_text() for path in PRODUCT.rglob("*.py"))
    assert {message for message in EXPLAINED if f'"{message}"' not in texts} == set()


CUT = (60.5, "server-1", "cut", {"to": "trainer-1"})


def test_an_end_may_wait_for_its_agent_after_a_fault():
    story = IGNORED(good())
    assert "ends without agent" not in plus(CUT)(story).judged()


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_found(name):
    oracle, changes = BROKEN[name]
    story = good()
    for change in changes:
        story = change(story)
    assert oracle in story.judged()


def test_every_oracle_has_a_history_that_it_finds():
    assert len({oracle for oracle, _ in BROKEN.values()}) == len(ORACLES)


def test_a_chat_may_be_sampled_again_after_the_death_of_its_trainer():
    story = crash("trainer-1", 1.55)(good().without("replied"))
    sampling(1.6, "d2")(story).change("got", draw="d2")
    assert story.judged() == []


@pytest.mark.parametrize(
    ("died", "got", "found"),
    [(3.5, 5.3, True), (3.5, 3.7, False), (2.9, 5.3, False)],  # a reply is in the journal 1.5 s after it came
)
def test_a_reply_in_the_journal_needs_no_trainer(died, got, found):
    story = crash("server-1", died)(good())
    for change in (*AGAIN, plus((got, "server-1", "got", SECOND | {"draw": "d1"}))):
        story = change(story)
    assert ("replayed at once" in story.judged()) == found


@pytest.mark.parametrize(("stopped", "found"), [("trainer-1", False), ("server-1", True)])
def test_a_stopped_trainer_has_no_time_to_commit_a_reply(stopped, found):
    story = good().without("got")
    story.add(1.61, stopped, "stop").add(9.0, stopped, "continue")
    sampling(9.2, "d2")(crash("trainer-1", 9.01)(story))
    assert ("sampled once" in story.judged()) == found


def test_a_reply_that_no_agent_has_got_may_be_sampled_again_after_the_death_of_its_trainer():
    story = crash("trainer-1", 1.62)(good())
    sampling(1.65, "d2")(story).change("got", draw="d2")
    assert story.judged() == []
