"""The replay command, on a journal that a server is writing meanwhile."""

import asyncio
import contextlib
import json
import os
import shutil
import sqlite3
from dataclasses import replace

import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import ChatReward, OutcomeStatus, RolloutOutcome, RolloutState, Sample, events
from osmosis_grpc.storage.journal.schema import JOURNAL
from osmosis_grpc.testing.replay import question_difference, result_differences
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.callback_trainer import CallbackTrainer
from tests.processes import run

AGENTS = """
import asyncio, os
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.rollout import RolloutAgentLoop
from osmosis_grpc.rollout.tools import create_tool_result, execute_tool_calls
from osmosis_grpc.protocol.types import ChatPurpose

WORD, TEMPERATURE = os.environ.get("WORD", "fine"), float(os.environ.get("TEMPERATURE", "0.5"))
CHATS, REWARD = int(os.environ.get("CHATS", "3")), float(os.environ.get("REWARD", "1"))
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}

class Steady(RolloutAgentLoop):
    name = "steady"
    def get_tools(self, request):
        if WORD == "broken":
            raise RuntimeError("no tools today")
        return [TOOL]
    async def execute(self, call):
        return create_tool_result(call["id"], f"it is {WORD}")
    async def run(self, ctx):
        print("printed by run")
        messages = list(ctx.request.messages)
        for _ in range(CHATS):
            reply = await ctx.chat(messages, temperature=TEMPERATURE)
            messages.append(reply.message)
            messages += await execute_tool_calls(reply.tool_calls, self.execute)
            if not reply.has_tool_calls:
                break
        await ctx.chat(messages, sample="critic", purpose=ChatPurpose.JUDGE)
        return ctx.complete(messages, reward=REWARD)

class Refused(RolloutAgentLoop):
    name = "refused"
    def get_tools(self, request):
        return []
    async def run(self, ctx):
        try:
            await ctx.chat(list(ctx.request.messages))
        except InvalidArgument as error:
            return ctx.complete(list(ctx.request.messages), reward=0.0, extra_fields={"why": str(error)})

class Waiting(RolloutAgentLoop):
    name = "waiting"
    def get_tools(self, request):
        return []
    async def run(self, ctx):
        await ctx.chat(list(ctx.request.messages))
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if WORD == "deaf":
                    continue
                raise

class Asking(Waiting):
    name = "asking"
    async def run(self, ctx):
        await ctx.chat(list(ctx.request.messages))
        await ctx.chat(list(ctx.request.messages) * 2)
        return ctx.complete([])

agents = [Steady(), Refused(), Waiting(), Asking()]
"""
QUESTION = [{"role": "user", "content": "How is it?"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


async def policy(request):
    if request.rollout_id == "refused":
        raise InvalidArgument("messages", "are not to the taste of this trainer")
    if request.rollout_id == "asking" and request.chat_number == 2:
        await asyncio.sleep(3600)
    if request.sample == "critic" or request.chat_number == 2:
        return answer(request, "it is fine")
    return answer(request, {"role": "assistant", "content": None, "tool_calls": [CALL]})


async def record(address):
    async with Trainer([address], policy) as trainer:
        for attempt in (1, 2):
            await trainer.rollout(rollout_id="attached", agent_loop="steady", attempt=attempt, messages=QUESTION)
    async with CallbackTrainer(policy) as trainer, RolloutClient(address) as client:

        async def start(name, agent_loop):
            await client.init(rollout_id=name, agent_loop=agent_loop, messages=QUESTION, callback=trainer.callback())

        for name, agent_loop in (("called", "steady"), ("refused", "refused")):
            await start(name, agent_loop)
            await trainer.outcome(name, timeout=30)
        for name, agent_loop in (("waiting", "waiting"), ("cancelled", "waiting"), ("asking", "asking")):
            await start(name, agent_loop)
        for name in ("waiting", "cancelled"):
            async for event in client.events(name):
                if type(event.kind).__name__ == "ChatAnswered":
                    break
        async for event in client.events("asking"):
            if event.event_number >= 5:
                break
        await client.cancel("cancelled")
        assert (await trainer.outcome("cancelled", timeout=30)).status == RolloutState.CANCELLED


@pytest.fixture(scope="module")
def folder(forked, tmp_path_factory):
    """A folder with agents.py and state, of a server that is still there."""
    folder = tmp_path_factory.mktemp("replay")
    (folder / "agents.py").write_text(AGENTS)
    with forked.serving("-m", "agents:agents", "--state-dir", "state", cwd=folder) as address:
        asyncio.run(record(address))
        yield folder


@pytest.fixture
def replay(folder, forked):
    """Runs the command in the folder, with variables for its agents."""

    def start(*arguments, module="agents:agents", state="state", **variables):
        modules = ("-m", module) if module else ()
        command = ("-m", "osmosis_grpc", "replay", *arguments, *modules, "--from", str(state))
        done = forked.run(*command, cwd=folder, env=os.environ | variables)
        # On a busy machine, the watchdog may find the event loop blocked.
        lines = [line for line in done.stderr.splitlines(keepends=True) if "has been blocked" not in line]
        done.stderr = "".join(lines)
        return done

    return start


@pytest.mark.parametrize("name", ["attached", "called"])
def test_the_same_agent_does_the_same(replay, name):
    done = replay(name)
    assert (done.returncode, done.stderr) == (0, "")
    attempt = 2 if name == "attached" else 1
    lines = [line for line in done.stdout.splitlines() if "printed" not in line]
    assert lines[:-1] == [
        f"rollout {name}, attempt {attempt}, agent loop steady",
        "  main 1  same  then called look",
        "  main 2  same",
        "  critic 1  same",
    ]
    assert lines[-1].startswith("result same: COMPLETED (stop), reward 1, 4 messages, ")
    assert int(lines[-1].split()[-2]) > 0


def test_an_attempt_and_records(replay):
    done = replay("attached", "--attempt", "1", "--json")
    assert done.returncode == 0
    *chats, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(chat["event"], chat["sample"], chat["number"], chat["same"], chat["tools"]) for chat in chats] == [
        ("chat", "main", 1, True, ["look"]),
        ("chat", "main", 2, True, []),
        ("chat", "critic", 1, True, []),
    ]
    assert last == {
        "event": "replayed",
        "rollout_id": "attached",
        "attempt": 1,
        "agent_loop": "steady",
        "chats": 3,
        "stopped": None,
        "not_asked": [],
        "same": True,
        "result": {"compared": True, "same": True, "why_not": None, "differences": []},
    }
    assert "printed by run" in done.stderr


def test_a_different_chat_is_reported_with_its_place(replay):
    done = replay("called", WORD="awful")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    start = lines.index("  main 2  different")
    assert lines[start + 1] == "      message 1 of the new ones"
    assert {"      -content: it is fine", "      +content: it is awful"} < set(lines[start + 2 :])
    assert "  main 1  same  then called look" in lines
    final = lines[lines.index("result different: final messages") + 1 :]
    assert [line for line in final if line.startswith(("      --", "      +-"))] == [
        "      --- recorded",
        '      -- {"content": "it is fine", "role": "tool", "tool_call_id": "c1"}',
        '      +- {"content": "it is awful", "role": "tool", "tool_call_id": "c1"}',
    ]


@pytest.mark.parametrize(
    ("variables", "reported"),
    [
        ({"TEMPERATURE": "0.6"}, "params"),
        ({"REWARD": "0.5"}, "result different: reward"),
        ({"CHATS": "1"}, "  main 2  not asked"),
    ],
)
def test_other_differences(replay, variables, reported):
    done = replay("called", **variables)
    assert done.returncode == 1
    assert reported in done.stdout


def test_a_chat_that_was_not_asked_before(replay):
    """It is not answered: nothing is recorded."""
    done = replay("called", "--json", CHATS="0")
    assert done.returncode == 1
    chats = [json.loads(line) for line in done.stdout.splitlines()]
    assert [chat.get("same") for chat in chats] == [False, False]
    assert chats[-1]["not_asked"] == [{"sample": "main", "number": 1}, {"sample": "main", "number": 2}]


def test_until_a_turn(replay):
    done = replay("called", "--until-turn", "1", "--json")
    assert done.returncode == 0
    chat, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert (chat["number"], chat["tools"]) == (1, ["look"])
    assert (last["chats"], last["stopped"], last["result"]["compared"]) == (1, "until_turn", False)


def test_a_chat_that_was_refused_is_refused_again(replay):
    done = replay("refused")
    assert done.returncode == 0, done.stdout
    assert "result same: COMPLETED (stop), reward 0, 1 messages, 0 tokens" in done.stdout


def test_what_has_not_ended_is_replayed_as_far_as_it_goes(replay):
    done = replay("asking")
    assert done.returncode == 0
    assert done.stdout.splitlines()[1:] == [
        "  main 1  same",
        "  main 2  same",
        "result not compared: the recording ends with the last chat",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["waiting", "cancelled"])
def test_an_agent_that_waits_is_stopped_at_its_turn_though_it_is_deaf(replay, name):
    """A turn that never comes is not waited for: the agent has everything that is recorded."""
    done = replay(name, WORD="deaf")
    assert done.returncode == 0
    assert done.stdout.splitlines()[1] == "  main 1  same"


def test_get_tools_that_raises(replay):
    done = replay("called", WORD="broken")
    assert done.returncode == 1
    assert "the agent loop did not start" in done.stderr
    assert "no tools today" in done.stderr


MISTAKES = [
    (["caled"], {}, "there is no rollout caled in state; similar ids: called"),
    (["zzzz"], {}, "the newest are: asking, cancelled, waiting"),
    (["attached", "--attempt", "7"], {}, "has no attempt 7; it has: 1, 2"),
    (["called"], {"-m": None}, "say where agent loop 'steady' is: -m MODULE:ATTR"),
    (["called"], {"-m": "agents:Waiting"}, "the rollout ran agent loop 'steady'; -m names waiting"),
    (["called"], {"-m": "agents:nothing"}, "agents has no attribute 'nothing'"),
    (["called"], {"-m": "no_such_module:x"}, "there is no module 'no_such_module'"),
    (["called"], {"-m": "raising:x"}, "ValueError: not today at "),
    (["called"], {"--from": "elsewhere"}, "--from: elsewhere is no folder and no run"),
    (["called"], {"--from": ":memory:"}, "--from names one on disk"),
    (["called"], {"--from": "corrupt"}, "cannot be used as a journal"),
    (["called"], {"--from": "newer"}, "was written by a newer version (schema 99"),
    (["called"], {"--from": "empty"}, "empty/journal.db is empty"),
    (["called", "--until-turn", "0"], {}, "--until-turn"),
]
ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys
from osmosis_grpc.cli import build
reported = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        try:
            build()(["replay", *arguments])
        except SystemExit as error:
            reported.append((error.code, stderr.getvalue()))
print(json.dumps(reported))
"""


@pytest.mark.slow
def test_what_cannot_be_replayed(folder):
    for name in ("corrupt", "newer", "empty"):
        (folder / name).mkdir()
        with contextlib.closing(sqlite3.connect(folder / name / "journal.db")) as database:
            if name == "newer":
                database.execute("PRAGMA user_version = 99")
                database.execute(f"PRAGMA application_id = {JOURNAL.application_id(99)}")
    (folder / "corrupt" / "journal.db").write_bytes(b"this is no database at all" * 100)
    (folder / "raising.py").write_text("raise ValueError('not today')")
    defaults = {"-m": "agents:agents", "--from": "state"}
    commands = []
    for arguments, changes, _ in MISTAKES:
        options = [[name, value] for name, value in (defaults | changes).items() if value]
        commands.append([*arguments, *(text for option in options for text in option)])
    done = run("-c", ONE_AFTER_ANOTHER, json.dumps(commands), cwd=folder)
    rows = json.loads(done.stdout)
    for (code, stderr), (arguments, _, reported) in zip(rows, MISTAKES, strict=True):
        assert code == 2, (arguments, stderr)
        assert reported in " ".join(stderr.split())
        assert "Traceback" not in stderr


def test_looking_changes_nothing(replay, folder):
    """Neither beside a server, nor in what a killed one left."""
    copied = folder / "copied"
    shutil.copytree(folder / "state", copied)
    (copied / "journal.db-shm").unlink()
    before = {
        path.name: path.read_bytes() for path in copied.iterdir() if path.name in ("journal.db", "journal.db-wal")
    }
    done = replay("called", state="copied")
    assert done.returncode == 0, done.stderr
    assert before == {name: (copied / name).read_bytes() for name in before}


def test_the_rewards_of_samples_and_the_policy_of_a_chat_are_compared():
    def outcome(**samples):
        return RolloutOutcome(rollout_id="r", status=OutcomeStatus.COMPLETED, samples=samples)

    recorded = outcome(main=Sample(reward=1.0), critic=Sample(reward=0.0))
    assert result_differences(recorded, recorded) == []
    other = outcome(main=Sample(reward=1.0), critic=Sample(reward_components={"format": 1.0}))
    assert [found.where for found in result_differences(recorded, other)] == ["rewards of sample critic"]
    chats = (ChatReward(chat_number=1, reward=1.0),)
    alone = outcome(main=Sample()), outcome(main=Sample(chat_rewards=chats))
    assert [found.where for found in result_differences(*alone)] == ["rewards of sample main"]
    lines = [replace(recorded, extra_fields={"text": f"a{end}b"}) for end in ("\n", "\u2028")]
    assert [bool(found.diff) for found in result_differences(*lines)] == [True]
    whole = outcome(main=Sample(reward=1.0)), replace(outcome(main=Sample(reward=0.5)), reward=0.5)
    assert [found.where for found in result_differences(*whole)] == ["reward"]
    asked = events.ChatRequested(sample="main", chat_number=1)
    assert question_difference(asked, replace(asked, policy="critic")).where == "policy"
    assert question_difference(asked, asked) is None
    pinned = replace(asked, params={"temperature": 1.0}, passed={"temperature": 0.5})
    assert question_difference(pinned, replace(asked, params={"temperature": 0.5})) is None, "the agent asks the same"
    assert question_difference(pinned, replace(asked, params={"temperature": 1.0})).where == "params"
