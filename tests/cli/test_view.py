"""The command view: its record, its pages, its end, and wrong options."""

import json
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

DIVIDER = """
from osmosis_grpc.rollout import RolloutAgentLoop, tool


@tool
async def divide(a: float, b: float) -> float:
    "Divides a by b."
    return a / b


class Divider(RolloutAgentLoop):
    name = "divider"
    tools = (divide,)

    async def run(self, ctx):
        messages = await ctx.tool_loop(ctx.request.messages)
        raise LookupError("there is no number")


agent_loop = Divider()
"""
REPLIES = [
    {"tool_calls": [{"id": "c1", "function": {"name": "divide", "arguments": '{"a": 6, "b": 0}'}}]},
    "It is unknown.",
]


def test_view_serves_a_folder_until_a_signal(forked, looked_at):
    folder = looked_at.options("folder")[1]
    with forked.ready("-m", "osmosis_grpc", "view", folder, "--port", "0", "--json") as (process, ready):
        assert ready["event"] == "ready"
        with urllib.request.urlopen(f"{ready['url']}?state=failed", timeout=20) as page:
            assert b'data-id="bad 1"' in page.read()
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0


@pytest.mark.slow
def test_the_line_of_a_failed_test_opens_the_turn_whose_tool_raised(tmp_path):
    (tmp_path / "divider.py").write_text(DIVIDER)
    (tmp_path / "data.jsonl").write_text('{"user_prompt": "6 by 0", "ground_truth": "0"}\n')
    (tmp_path / "script.json").write_text(json.dumps(REPLIES))
    command = [sys.executable, "-m", "osmosis_grpc"]
    options = ["test", "-m", "divider:agent_loop", "-d", "data.jsonl", "--model", "mock:script=script.json"]
    done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    words = shlex.split(lines[lines.index("To see the failure in a browser:") + 1])
    view = words[words.index("view") :]
    with subprocess.Popen(
        [*command, *view, "--port", "0", "--json"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            address, _, fragment = json.loads(process.stdout.readline())["url"].partition("#")
            with urllib.request.urlopen(address, timeout=20) as page:
                text = page.read().decode()
        finally:
            process.send_signal(signal.SIGINT)
    assert fragment == "failed"
    assert 'data-failing="main/1"' in text
    assert 'href="#turn=1">Turn 1, whose tool raised' in text


def test_a_server_that_refuses_is_named_with_follow(forked, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and it does not listen
        done = forked.run("-m", "osmosis_grpc", "view", "--follow", f"127.0.0.1:{taken.getsockname()[1]}", cwd=tmp_path)
    assert done.returncode == 2
    assert "name another with --follow" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    {
        ("nothing",): "view: nothing: there is no such folder; name a state folder or the folder of a run\n",
        (".",): "view: .: there is no journal in it; name a state folder or the folder of a run\n",
        ("a", "--demo"): "view: a folder, --run, --follow and --demo exclude each other; name one of them\n",
        ("--token", ""): "view: the token is empty; name a secret\n",
    }.items(),
)
def test_a_wrong_option_says_what_to_name_instead(forked, tmp_path, options, message):
    done = forked.run("-m", "osmosis_grpc", "view", *options, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


def test_a_tokenizer_that_is_no_file_is_named(forked, tmp_path):
    pytest.importorskip("tokenizers", reason="the extra tokenizer is not installed")
    done = forked.run("-m", "osmosis_grpc", "view", "--tokenizer", "none", cwd=tmp_path)
    message = "view: --tokenizer none: [Errno 2] No such file or directory: 'none'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


def test_other_machines_need_a_token(forked, looked_at):
    folder = looked_at.options("folder")[1]
    done = forked.run("-m", "osmosis_grpc", "view", folder, "--host", "0.0.0.0", cwd=looked_at.folder)
    assert done.returncode == 2
    assert "so it needs a token: --token-file FILE" in done.stderr


@pytest.mark.slow
def test_the_demo_has_what_a_first_look_is_for(tmp_path):
    command = [sys.executable, "-m", "osmosis_grpc", "view", "--demo", "--port", "0", "--json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = json.loads(process.stdout.readline())["url"]

            def read(path):
                with urllib.request.urlopen(address + path, timeout=20) as page:
                    return page.read().decode()

            assert read("").count("<tr data-id=") == 12
            failed = read("?state=failed")
            assert failed.count("<tr data-id=") == 2
            assert "AGENT_EXCEPTION" in failed
            assert "NO VARIANCE" in read("group?id=demo-equal")
            assert "NO VARIANCE" not in read("group?id=demo-mixed")
            tools = {each["name"]: each for each in json.loads(read("throughput.json"))["spreads"]}
            assert tools["search"]["p50"] > 10 * tools["population"]["p50"]
            segments = json.loads(read("rollout/tokens.json?id=demo-mixed-1"))["segments"]
            texts = json.loads(read("rollout/tokens-text.json?id=demo-mixed-1"))
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    at = segments[1]["start"] + segments[1]["drift"]
    assert segments[0]["drift"] is None
    assert texts[at : at + 2] == [" sea", "rch"]
    assert "".join(texts[: segments[1]["start"]]).startswith("<|user|>How many people live in Lisbon?<|end|>")
    assert list(tmp_path.iterdir()) == []
