"""Texts of agents, models, tools, datasets and file names have no effect on a terminal, in any command."""

import json
import re
import shutil
import signal

import pytest

from osmosis_grpc.policies import ScriptedPolicy
from osmosis_grpc.serve.json_output import say_error
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.waiting import until

CONTROLS = {
    "CSI": "\x1b[2J\x1b[8m",
    "a title": "\x1b]0;owned\x07",
    "a link": "\x1b]8;;http://evil.example\x1b\\",
    "the clipboard": "\x1b]52;c;aGk=\x07",
    "C1": "\x9b31m\x9d0;t\x9c\x85",
    "a line written over": "\rREWRITTEN\x08\x7f",
    "bidi": "\u202eoverride\u2066\u200f",
    "line separators": "\u2028\u2029",
}
EVIL = "".join(CONTROLS.values())
NAME = "evil" + EVIL.replace("/", "")
"""The name of a file."""
AGENT = f"""
import logging
from osmosis_grpc.rollout import RolloutAgentLoop
from osmosis_grpc.rollout.tools import create_tool_result, execute_tool_calls

EVIL = {EVIL!r}
TOOL = {{"type": "function", "function": {{"name": "look", "description": EVIL, "parameters": {{"type": "object"}}}}}}

class Evil(RolloutAgentLoop):
    name = "evil"

    def get_tools(self, request):
        return [TOOL]

    async def execute(self, call):
        return create_tool_result(call["id"], EVIL)

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        reply = await ctx.chat(messages)
        messages += [reply.message, *await execute_tool_calls(reply.tool_calls, self.execute)]
        logging.getLogger("agent" + EVIL).warning("logged %s", EVIL)
        ctx.log_event("seen", by=EVIL)
        if "fail" in str(messages[0]["content"]):
            raise LookupError(EVIL + "\\n" + EVIL)
        return ctx.complete(messages, reward=0.5)

agent_loop = Evil()

class Named(Evil):
    name = "evil" + EVIL

named = Named()

def score(solution_str, ground_truth):
    return 0.5

def broken(solution_str, ground_truth):
    raise ValueError(EVIL)
"""
ROWS = [
    {"user_prompt": f"go {EVIL}", "ground_truth": EVIL, f"column {EVIL}": EVIL},
    {"user_prompt": f"fail {EVIL}", "ground_truth": EVIL},
]
CALLS = [("look", json.dumps({EVIL: EVIL})), (EVIL, EVIL)]
SCRIPT = [
    {
        "content": EVIL,
        "reasoning_content": EVIL,
        "tool_calls": [{"id": f"c{n}", "function": {"name": a, "arguments": b}} for n, (a, b) in enumerate(CALLS)],
    },
    EVIL,
]
MODEL = ("-m", "agent:agent_loop", "--model", "mock:script=script.json")
DATA = ("-d", f"{NAME}.jsonl")
RUN = ("--from", f"runs/{NAME}")
OURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[0-9]*A|\x1b\[2K|\r(?=\x1b\[2K|\n)")
"""What our own lines and bars write: colours, and on a terminal the movements of the cursor of a bar."""


@pytest.fixture(scope="module")
def folder(forked, tmp_path_factory):
    """A folder with files of evil names and texts, and with a run of `test` and one of `eval`."""
    made = tmp_path_factory.mktemp("evil")
    (made / "agent.py").write_text(AGENT)
    (made / f"{NAME}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (made / f"{NAME}.csv").write_text(f'"a{EVIL}",b\n1,2\n')
    (made / "script.json").write_text(json.dumps(SCRIPT))
    (made / "object.json").write_text(json.dumps({EVIL: [{EVIL: EVIL}]}))
    for command in (("test",), ("eval", "--eval-fn", "agent:score")):
        to = f"runs/{NAME}" if command == ("test",) else "runs/eval"
        forked.run("-m", "osmosis_grpc", *command, *MODEL, *DATA, "--save-dir", to, cwd=made)
    id_of_run = json.loads((made / f"runs/{NAME}/run.json").read_text())["id"]
    (made / "id").write_text(id_of_run)
    return made


def effects(text):
    """Return the characters that could have an effect."""
    return sorted({char for char in OURS.sub("", text) if not char.isprintable() and char not in "\n\t"})


def command(folder, arguments):
    ident = (folder / "id").read_text()
    return [each.replace("ROLLOUT", f"test-{ident}") for each in arguments]


FAST = {
    "test": ("test", *MODEL, *DATA),
    "test --plain": ("test", *MODEL, *DATA, "--plain"),
    "show": ("show", "ROLLOUT-1", *RUN),
    "replay": ("replay", "ROLLOUT-0", "-m", "agent:agent_loop", *RUN),
    "query": ("query", f'SELECT *, 1 AS "{EVIL[:10]}" FROM tools', *RUN),
    "an unknown rollout": ("show", NAME, *RUN),
}
SLOW = {
    "test -q": ("test", *MODEL, *DATA, "-q"),
    "test --debug": ("test", *MODEL, *DATA, "--debug"),
    "test --json": ("test", *MODEL, *DATA, "--json"),
    "test of an agent with an evil name": ("test", *MODEL, "-m", "agent:named", *DATA),
    "test of no agent": ("test", "-m", f"agent:{NAME}", *DATA),
    "test of no module": ("test", "-m", NAME, *DATA),
    "test of no dataset": ("test", *MODEL, "-d", f"no{NAME}.jsonl"),
    "test of a dataset with evil columns": ("test", *MODEL, "-d", f"{NAME}.csv"),
    "test with no mock": ("test", *MODEL, *DATA, "--model", f"mock:{NAME}"),
    "test with an evil script": ("test", *MODEL, *DATA, "--model", "mock:script=object.json"),
    "test without a model server": ("test", *MODEL, *DATA, "--model", NAME, "--base-url", f"http://127.0.0.1:1/{NAME}"),
    "test --map": ("test", *MODEL, *DATA, "--map", f"{EVIL}=user_prompt"),
    "test --price": ("test", *MODEL, *DATA, "--price", EVIL),
    "test -o": ("test", *MODEL, *DATA, "-o", f"no/{NAME}"),
    "test --replay": ("test", *MODEL[:2], *DATA, "--replay", NAME),
    "eval": ("eval", *MODEL, *DATA, "--eval-fn", "agent:score"),
    "eval with a broken function": ("eval", *MODEL, *DATA, "--eval-fn", "agent:broken"),
    "eval with no function": ("eval", *MODEL, *DATA, "--eval-fn", f"agent:{NAME}"),
    "compare": ("compare", "runs/eval", "runs/eval"),
    "compare of no run": ("compare", NAME, "runs/eval"),
    "rescore": ("rescore", *RUN, "--eval-fn", "agent:broken"),
    "rescore by an evil author": ("rescore", *RUN, "--eval-fn", "agent:score", "--author", EVIL),
    "show of a rollout that completed": ("show", "ROLLOUT-0", *RUN, "--tokens", "--reasoning"),
    "export to stdout": ("export", "--to", "messages", "-o", "-", *RUN),
    "export of an untrainable rollout": ("export", "--to", "verl", "-o", "v", *RUN),
    "export to an evil format": ("export", "--to", NAME, *RUN),
    "export to an evil output": ("export", "--to", "atif", "-o", f"no/{NAME}.jsonl", *RUN),
    "show --turn": ("show", "ROLLOUT-1", *RUN, "--turn", "1"),
    "show --sample": ("show", "ROLLOUT-1", *RUN, "--sample", NAME),
    "show --json": ("show", "ROLLOUT-1", *RUN, "--tokens", "--json"),
    "events": ("events", "ROLLOUT-1", *RUN),
    "events --json": ("events", "ROLLOUT-1", *RUN, "--json"),
    "list": ("list", *RUN),
    "list --json": ("list", *RUN, "--json"),
    "list of no folder": ("list", "--from", NAME),
    "list of no server": ("list", "--from", NAME),
    "query --json": ("query", f'SELECT *, 1 AS "{EVIL}" FROM chats', *RUN, "--json"),
    "query --csv": ("query", "SELECT * FROM chats", *RUN, "--csv"),
    "query with a mistake": ("query", f"SELEC {EVIL}", *RUN),
    "ping": ("ping", NAME),
    "call": ("call", NAME),
    "call of no file": ("call", "Init", "--data", f"@{NAME}"),
    "init": ("init", NAME),
    "doctor": ("doctor", "--state-dir", f"runs/{NAME}"),
    "validate": ("validate", "-m", "agent:agent_loop", "--run"),
    "validate of an agent with an evil name": ("validate", "-m", "agent:named"),
    "serve of no agent": ("serve", "-m", f"agent:{NAME}"),
    "serve with no token file": ("serve", "-m", "agent:agent_loop", "--token-file", NAME),
    "demo": ("demo", "-m", "agent:agent_loop"),
}


WITHOUT = {"compare", "query with a mistake", "rescore by an evil author"}
"""Commands whose output has no such text at all, or only its beginning."""


@pytest.mark.parametrize("name", FAST)
def test_no_text_has_an_effect_on_a_terminal(forked, folder, name):
    check(forked, folder, name, FAST[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_no_text_has_an_effect_on_a_terminal_in_any_command(forked, folder, name):
    check(forked, folder, name, SLOW[name])


def check(forked, folder, name, arguments):
    code, text = forked.shown("-m", "osmosis_grpc", *command(folder, arguments), cwd=folder)
    assert effects(text) == []
    assert code in (0, 1, 2)
    assert ("[2J" in text) is (name not in WITHOUT), ascii(text)


@pytest.mark.slow
def test_no_text_has_an_effect_in_a_session(forked, folder):
    shutil.rmtree(folder / ".osmosis", ignore_errors=True)
    with forked.on_terminal("-m", "osmosis_grpc", "test", *MODEL, *DATA, "-i", cwd=folder) as (process, screen):
        for typed in ("t", "m", "n", f"i {EVIL.replace(chr(13), '')[:40]}", "r 1", "n", "q"):
            screen.expect("> ")
            screen.send(typed if typed.isprintable() else "i no")
        code = process.wait()
    assert code == 0
    assert effects(screen.text.replace("\r", "")) == []
    assert r"\x1b]52;c;aGk=\x07" in screen.text


@pytest.mark.slow
async def test_no_text_has_an_effect_in_the_log_of_a_server(forked, folder):
    serve = ("serve", "-m", "agent:agent_loop", "--grpc-port", "0", "--no-http", "--no-validate")
    with forked.on_terminal("-m", "osmosis_grpc", *serve, cwd=folder) as (process, screen):
        await until(lambda: re.search(r"127\.0\.0\.1:\d{2,}", screen.text))
        address = re.search(r"127\.0\.0\.1:\d{2,}", screen.text)[0]
        async with (
            CallbackTrainer(ScriptedPolicy([{"role": "assistant", **SCRIPT[0]}])) as trainer,
            RolloutClient(address) as client,
        ):
            messages = [{"role": "user", "content": f"fail {EVIL}"}]
            await client.init(rollout_id="r", messages=messages, callback=trainer.callback())
            assert (await trainer.outcome("r", timeout=30)).status == "FAILED"
        await until(lambda: screen.text.count("REWRITTEN") > 2)
        process.send_signal(signal.SIGTERM)
        process.wait()
    assert effects(screen.text) == []


@pytest.mark.parametrize("text", CONTROLS.values(), ids=CONTROLS)
def test_an_error_has_no_effect(capsys, text):
    say_error(f"first {text} \ud800\nsecond")
    out = capsys.readouterr().err
    assert effects(out) == []
    assert out.startswith("first ")
    assert out.endswith("\\ud800\nsecond\n")
