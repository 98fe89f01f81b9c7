"""The key of a model and the token of a server are in no file, on no screen and in no record."""

import json
import os

import pytest

from tests.cli.evaluated import AGENT, REWARDS, ROWS
from tests.model_server import KEY, model_server, reply

MODEL = ("-m", "agent:agent_loop", "-d", "data.jsonl", "--model", "tiny")
EVAL = ("eval", *MODEL, "--eval-fn", "rewards:exact")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "rewards.py").write_text(REWARDS)
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


@pytest.fixture
def seen(forked, folder):
    """Runs a command on a terminal, and returns its exit code. In the end, nothing of it may have the key."""
    screens = []

    def command(*arguments, **variables):
        given = {name: "" for name in os.environ if name.startswith("OPENAI_")} | variables
        code, text = forked.shown("-m", "osmosis_grpc", *arguments, cwd=folder, **given)
        screens.append(text)
        assert KEY not in text
        return code

    yield command
    assert screens
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def answering(body):
    """Answer the probe, and then with errors that repeat the key, and with replies."""
    last = str(body["messages"][-1]["content"])
    if "6 / 2" in last:
        return 400, {"error": {"message": f"bad request with the key {KEY}"}}
    if "1 / 0" in last:
        return {"choices": [{"message": f"the key is {KEY}"}]}
    return reply("It is 4.")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["option", "variable"])
def test_the_key_of_a_model_is_nowhere(seen, folder, how):
    with model_server(answering) as server:
        url = ("--base-url", server.url)
        key, variables = (("--api-key", KEY), {}) if how == "option" else ((), {"OPENAI_API_KEY": KEY})
        assert seen("test", *MODEL, *url, *key, "--save-dir", "run", "-o", "out.json", **variables) == 1
        assert seen("test", *MODEL, *url, *key, "--debug", "--json", **variables) == 1
        assert seen(*EVAL, *url, *key, "--save-dir", "scored", **variables) == 1
    assert seen("test", *MODEL, *url, *key, **variables) == 2
    ident = json.loads((folder / "run" / "run.json").read_text())["id"]
    for more in ((), ("--json",)):
        assert seen("show", f"test-{ident}-0", "--from", "run", *more) == 1
    assert seen("events", f"test-{ident}-1", "--from", "run", "--json") == 0
    assert seen("query", "SELECT * FROM chats", "--from", "run", "--json") == 0


@pytest.mark.parametrize(
    "url", [f"http://user:{KEY}@127.0.0.1:1/v1", f"http://127.0.0.1:1/v1?key={KEY}", f"http://127.0.0.1:1/v1#{KEY}"]
)
@pytest.mark.parametrize("model", ["tiny", "mock:echo"])
def test_a_url_with_a_secret_is_refused(seen, url, model):
    assert seen("test", *MODEL, "--model", model, "--base-url", url) == 2
    if model == "tiny":
        assert seen("test", *MODEL, OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY) == 2


@pytest.mark.parametrize("command", ["list", "ping", "ctl config", "call GetServerInfo"])
def test_an_address_with_a_password_is_not_shown(seen, command):
    words = command.split()
    target = (
        (f"user:{KEY}@127.0.0.1:1",)
        if command == "ping"
        else ("--server" if " " in command else "--from", f"user:{KEY}@127.0.0.1:1")
    )
    assert seen(*words, *target) == 2


@pytest.mark.slow
@pytest.mark.parametrize("how", ["option", "file", "variable"])
def test_the_token_of_a_server_is_nowhere(seen, folder, how):
    secret = folder / "secret.py"  # the test leaves out this file
    secret.write_text(KEY)
    ways = {"option": ("--token", KEY), "file": ("--token-file", str(secret)), "variable": ()}
    variables = {"OSMOSIS_ROLLOUT_CLIENT_TOKEN": KEY} if how == "variable" else {}
    for words in (("list",), ("events",), ("show", "r"), ("ctl", "config"), ("call", "GetServerInfo"), ("rescore",)):
        more = ("--eval-fn", "rewards:exact") if words == ("rescore",) else ()
        server = "--server" if words[0] in ("ctl", "call") else "--from"
        assert seen(*words, *more, server, "127.0.0.1:1", *ways[how], **variables) in (1, 2)
