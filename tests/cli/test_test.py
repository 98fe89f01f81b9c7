"""The test command, as a user runs it: over files, with mocks and with a model server on a real socket."""

import json
import os
import re
import shlex
import shutil
import signal

import pytest
from typer import Exit

from osmosis_grpc.cli.command_options import Choices, RunOptions
from osmosis_grpc.cli.dataset_options import prepare
from osmosis_grpc.cli.eval import run_dataset
from osmosis_grpc.records.evaluate import RunError, RunFolder
from tests.model_server import KEY, model_server, reply
from tests.processes import ROOT, run
from tests.waiting import wait_until

AGENT = '''
import os
from osmosis_grpc.rollout import RolloutAgentLoop, tool

@tool
async def divide(a: float, b: float) -> float:
    """Divides a by b."""
    return a / b

class Divider(RolloutAgentLoop):
    name = "divider"
    tools = (divide,)

    async def run(self, ctx):
        print("the agent prints")
        messages = await ctx.tool_loop(ctx.request.messages, **ctx.request.completion_params)
        text = str(ctx.request.messages[-1]["content"])
        if "fail" in text:
            raise ValueError("\\x1b[31mI fail\\nand why")
        return ctx.complete(messages, reward=float(ctx.request.label in str(messages[-1]["content"])))

agent_loop = Divider()
'''
ROWS = [
    {"system_prompt": "Divide.", "user_prompt": "What is 6 / 2?", "ground_truth": "3"},
    {"system_prompt": "Divide.", "user_prompt": "What is 1 / 0?", "ground_truth": "9"},
    {"system_prompt": "Divide.", "user_prompt": "What is 8 / 2?", "ground_truth": "4"},
]
PROGRAM = "osmosis-grpc" if shutil.which("osmosis-grpc") else "python -m osmosis_grpc"
USUAL = ("-m", "osmosis_grpc", "test", "-m", "agent:agent_loop", "-d", "data.jsonl")
SCRIPT = {
    "0": [{"tool_calls": [{"id": "c", "function": {"name": "divide", "arguments": '{"a": 6, "b": 2}'}}]}, "It is 3."],
    "*": ["It is 4."],
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    write(tmp_path, ROWS)
    (tmp_path / "script.json").write_text(json.dumps(SCRIPT))
    return tmp_path


def write(folder, rows):
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def test(forked, folder):
    """Runs the command in the folder, without the variables of a model."""

    def command(*arguments, **variables):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
        return forked.run(*USUAL, *arguments, cwd=folder, env=kept | variables)

    return command


def runs(folder):
    return sorted((folder / ".osmosis" / "runs").glob("*"))


def events(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_all_rows_complete_and_the_exit_code_is_0(test, folder):
    done = test("--model", "mock:script=script.json", "--concurrency", "1")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line for line in done.stdout.splitlines() if line != "the agent prints"]
    assert re.fullmatch(
        r"row 0  COMPLETED  reward 1  2 chats  \d+ tokens  \d\.\d\d s  label 3  What is 6 / 2\?", lines[0]
    )
    assert re.fullmatch(r"3 of 3 rows COMPLETED, mean reward 0\.667, \d+ \+ \d+ tokens, 4 chats, \d+\.\d s", lines[3])
    (path,) = runs(folder)
    name = path.name.rpartition("-")[2]
    assert lines[4:] == [
        f"lowest reward 0 (row 1): {PROGRAM} show 1 --from {name}",
        f"The run is in {path.relative_to(folder)}.",
        f"In a browser: {PROGRAM} view --from {name}",
        f"Again without a model: {PROGRAM} test --replay {name}",
    ]


def test_some_rows_fail_and_a_line_has_the_command_that_shows_the_first_of_them(forked, test, folder):
    write(folder, [*ROWS, {"user_prompt": "fail\x1b[31m"}])
    done = test("--model", "mock:echo", "--concurrency", "1")
    assert done.returncode == 1
    assert (
        "row 3 (data.jsonl:4)  FAILED  AGENT_EXCEPTION: ValueError: \\x1b[31mI fail (at agent.py:19 in Divider.run)\n"
        in done.stdout
    )
    assert "\x1b" not in done.stdout + done.stderr
    (path,) = runs(folder)
    about = json.loads((path / "run.json").read_text())
    assert f"\n1 failed (row 3): {PROGRAM} show 3 --from {about['id']}\n" in done.stdout
    shown = forked.run("-m", "osmosis_grpc", "show", "3", "--from", about["id"], "--json", cwd=folder)
    assert json.loads(shown.stdout.splitlines()[0])["rollout_id"] == f"test-{about['id']}-3"


def test_the_command_for_a_failure_shows_the_result_of_the_tool_that_failed(forked, test, folder):
    calls = [{"id": "c", "function": {"name": "divide", "arguments": '{"a": 1, "b": 0}'}}]
    (folder / "script.json").write_text(json.dumps([{"tool_calls": calls}]))  # the second chat has no reply
    done = test("--model", "mock:script=script.json", "--row", "1")
    assert done.returncode == 1
    command = next(shlex.split(line) for line in done.stdout.splitlines() if line.startswith("1 failed"))
    shown = forked.run("-m", "osmosis_grpc", *command[command.index("show") :], cwd=folder)
    assert "calls divide" in shown.stdout
    assert "Error: float division by zero" in shown.stdout


def test_a_wrong_key_is_one_error_and_no_row_runs(test, folder):
    with model_server(lambda body: reply("It is 3.")) as server:
        done = test("--model", "tiny", "--base-url", server.url, "--api-key", "sk-wrong")
    assert (done.returncode, done.stdout) == (2, "")
    url = f"{server.url}/chat/completions"
    assert done.stderr == (
        f"test: tiny: the model server answered 401 (POST {url}); check --api-key or OPENAI_API_KEY\n"
    )
    assert len(server.asked) == 1
    assert runs(folder) == []


def model(body):
    """Call the tool with the numbers of the question, and answer with its result."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return reply(f"It is {last['content']}")
    numbers = re.findall(r"\d+", last["content"])
    return reply(None, ("divide", dict(zip("ab", map(int, numbers), strict=True)))) if numbers else reply("OK")


def test_a_model_server_is_asked_with_the_options(test, folder):
    options = ("--temperature", "0.5", "--max-tokens", "64", "--max-turns", "3", "--price", "1/2")
    with model_server(model) as server:
        done = test("--model", "tiny", "--base-url", server.url, *options, OPENAI_API_KEY=KEY)
    assert done.returncode == 0, done.stderr
    probe, *chats = server.asked
    assert probe["messages"] == [{"role": "user", "content": "Reply with the word OK."}]
    assert len(chats) == 6
    assert {(body["model"], body["temperature"], body["max_tokens"]) for body in server.asked} == {("tiny", 0.5, 64)}
    assert chats[0]["tools"][0]["function"]["name"] == "divide"
    assert "6,000 + 3,000 tokens, $0.0120, 6 chats" in done.stdout
    assert not [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert KEY not in done.stdout + done.stderr


def test_a_replay_pins_the_parameters_that_its_run_has_pinned(test, folder):
    (folder / "agent.py").write_text(AGENT.replace("**ctx.request.completion_params", "temperature=1"))
    with model_server(model) as server:
        options = ("--base-url", server.url, "--temperature", "0.5", "--pin-sampling")
        first = test("--model", "tiny", *options, OPENAI_API_KEY=KEY)
    second = test("--replay", "last")
    assert (first.returncode, second.returncode) == (0, 0), second.stdout
    assert {body["temperature"] for body in server.asked} == {0.5}


def test_a_replay_asks_no_model(test, folder):
    with model_server(model) as server:
        options = ("--base-url", server.url, "--temperature", "0.5", "--json")
        first = test("--model", "tiny", *options, OPENAI_API_KEY=KEY)
    asked = len(server.asked)
    (recorded,) = runs(folder)
    other = test("--replay", "last", "--row", "0", "--temperature", "0.7")
    assert f"is not the chat that {recorded.relative_to(folder)} has: other temperature;" in other.stdout
    second = test("--replay", "last", "--json")  # with the parameters of the first run, which asked a model
    assert (first.returncode, second.returncode) == (0, 0)
    assert len(server.asked) == asked
    before, after = (
        {row["row_index"]: (row["reward"], row["token_usage"]) for row in events(done) if row["event"] == "row"}
        for done in (first, second)
    )
    assert before == after
    assert len(runs(folder)) == 3


def test_limit_offset_and_row_choose_rows(test):
    def rows(*options):
        done = test("--model", "mock:echo", "--json", *options)
        return sorted(row["row_index"] for row in events(done) if row["event"] == "row")

    assert rows("--limit", "2") == [0, 1]
    assert rows("--offset", "1", "--limit", "1") == [1]
    assert rows("--row", "2") == [2]


def test_the_output_file_has_the_summary_and_the_results(test, folder):
    write(folder, [*ROWS, {"user_prompt": "fail"}])
    done = test("--model", "mock:echo", "-o", "out.json", "--save-dir", "my run")
    assert done.returncode == 1
    assert done.stdout.endswith("test --replay 'my run'\n")
    assert "show 3 --from 'my run'\n" in done.stdout
    written = json.loads((folder / "out.json").read_text())
    assert written["schema_version"] == 1
    assert (written["summary"]["total"], written["summary"]["passed"], written["summary"]["failed"]) == (4, 3, 1)
    assert [result["row_index"] for result in written["results"]] == [0, 1, 2, 3]
    ok, bad = written["results"][0], written["results"][3]
    assert (ok["success"], ok["error"], ok["reward"], ok["finish_reason"]) == (True, None, 0.0, "stop")
    assert set(ok["token_usage"]) == {"prompt_tokens", "completion_tokens", "total_tokens", "num_llm_calls"}
    assert (bad["success"], bad["reason"], bad["line"]) == (False, "AGENT_EXCEPTION", 4)
    assert written["run"]["folder"] == "my run"
    assert json.loads((folder / "my run" / "run.json").read_text())["state"] == "finished"


def test_an_output_file_that_cannot_be_written_is_an_error_before_a_row_runs(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    for name, problem in (
        ("none/out.json", "none/out.json: there is no folder none; make it first"),
        (".", ".: is a folder; name a file in it"),
    ):
        run = RunOptions(module="agent:agent_loop", dataset="data.jsonl", model="mock:echo", output=name)
        with pytest.raises(Exit) as ended:
            prepare(run, Choices(command="test"))
        assert ended.value.exit_code == 2
        assert capsys.readouterr().err == f"test: -o {problem}\n"


def test_a_replay_asks_no_model_and_has_as_many_runs_of_each_row(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    RunFolder.create(folder / "evaluated", {"command": "eval", "n": 4}).unlock()
    run = RunOptions(module="osmosis_grpc.testing.calculator:CalculatorAgent", dataset="data.jsonl", replay="evaluated")
    with pytest.raises(Exit) as ended:
        run_dataset(run, Choices(command="test"), frozenset({"model", "replay", "base_url"}))
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err.endswith("asks no model; leave out --model and --base-url\n")
    for runs in (1, 5):
        with pytest.raises(RunError, match=f"evaluated is a run of eval with 4 runs of each row, not {runs}; replay"):
            prepare(run, Choices(command="eval", n=runs))


def saved(path, rows):
    """Write rows in the format of the file's name."""
    if path.suffix == ".parquet":
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        path.write_text("\n".join(",".join(line) for line in [rows[0].keys(), *(row.values() for row in rows)]))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path.name


@pytest.mark.parametrize("end", ["json", "jsonl", "csv", "parquet"])
def test_the_example_of_the_sdk_runs_on_its_data_in_every_format(forked, folder, end):
    seeds = ROOT / "tests" / "seeds"
    parts = (seeds / "preamble.py", seeds / "blocks" / "seed000_01_calculator.py")
    (folder / "server.py").write_text("\n".join(part.read_text() for part in parts))
    name = saved(folder / f"test_data.{end}", [{key.upper(): value for key, value in row.items()} for row in ROWS])
    options = ("-m", "server:agent_loop", "-d", name, "--model", "mock:tools", "--limit", "2", "-o", "results.json")
    done = forked.run("-m", "osmosis_grpc", "test", *options, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    written = json.loads((folder / "results.json").read_text())
    assert {"total", "passed", "failed", "total_duration_ms", "total_tokens"} <= written["summary"].keys()
    for number, result in enumerate(written["results"]):
        assert (result["row_index"], result["success"], result["error"]) == (number, True, None)
        assert (result["reward"], result["finish_reason"]) == (1.0, "stop")
        usage = result["token_usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert (usage["num_llm_calls"], result["duration_ms"] > 0) == (3, True)


def test_quiet_prints_only_the_summary(test, folder):
    write(folder, [*ROWS, {"user_prompt": "fail"}])
    done = test("--model", "mock:echo", "-q")
    lines = [line for line in done.stdout.splitlines() if line != "the agent prints"]
    assert lines[0].startswith("row 3 (data.jsonl:4)  FAILED  AGENT_EXCEPTION")
    assert lines[1].startswith("3 of 4 rows COMPLETED, 1 failed, mean reward 0 of the 3 that completed, ")


def test_a_reader_that_leaves_does_not_stop_the_run(forked, folder):
    left = "import os; reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 1)"
    code = f"{left}; import sys; sys.path.insert(0, ''); from osmosis_grpc.cli import main; main()"
    done = forked.run("-c", code, *USUAL[2:], "--model", "mock:echo", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    (path,) = runs(folder)
    assert len((path / "results.jsonl").read_text().splitlines()) == len(ROWS)


def test_debug_shows_the_conversations(test):
    done = test("--model", "mock:script=script.json", "--debug", "--row", "0")
    assert "    1 assistant calls divide" in done.stdout
    assert "        result: 3" in done.stdout


def test_columns_are_mapped(test, folder):
    write(folder, [{"question": "What is 6 / 2?", "answer": "3"}])
    refused = test("--model", "mock:echo")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(
        "test: data.jsonl:1: has no column user_prompt, messages or prompt; it has: question"
    )
    done = test("--model", "mock:echo", "--map", "question=user_prompt", "--map", "answer=ground_truth")
    assert done.returncode == 0


def test_a_replay_takes_the_agent_the_dataset_and_the_columns_of_its_run(forked, test, folder):
    write(folder, [{"question": "What is 3 by 1?", "answer": "3"}, {"question": "What is 4 by 1?", "answer": "5"}])
    assert test("--model", "mock:echo", "--map", "question=user_prompt", "--map", "answer=ground_truth").returncode == 0
    for given in ((), USUAL[3:]):
        again = forked.run("-m", "osmosis_grpc", "test", "--replay", "last", *given, "--json", cwd=folder)
        assert again.returncode == 0, again.stderr
        rows = [event for event in events(again) if event["event"] == "row"]
        assert {(row["row_index"], row["reward"], row["label"]) for row in rows} == {(0, 1.0, "3"), (1, 0.0, "5")}
    (folder / "other.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    other = forked.run("-m", "osmosis_grpc", "test", "--replay", "last", "-d", "other.jsonl", cwd=folder)
    assert "COMPLETED" not in other.stdout.splitlines()[0]  # its columns have other names, and its chat no reply


def test_words_without_options_are_told_the_options(forked, folder):
    done = forked.run("-m", "osmosis_grpc", "test", "agent:agent_loop", "data.jsonl", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(": -m agent:agent_loop -d data.jsonl\n")


@pytest.mark.parametrize("model", ["mock:tools", "mock:echo"])
def test_the_tokens_of_a_mock_do_not_drift(forked, test, folder, model):
    assert test("--model", model).returncode == 0
    shown = forked.run("-m", "osmosis_grpc", "show", "0", "--tokens", cwd=folder)
    assert "segment 1: " in shown.stdout
    assert "segment 2: " not in shown.stdout


def test_a_second_run_names_the_one_before_it_and_both_are_compared(forked, test, folder):
    assert " compare " not in test("--model", "mock:echo").stdout
    done = test("--model", "mock:script=script.json")
    before, after = (path.name.rpartition("-")[2] for path in runs(folder))
    assert done.stdout.endswith(f" compare {before} {after}\n")
    compared = forked.run("-m", "osmosis_grpc", "compare", before, after, cwd=folder)
    assert compared.returncode == 0, compared.stderr
    assert [line.split()[:4] for line in compared.stdout.splitlines() if line.endswith("?")] == [
        ["0", "0", "1", "+1"],
        ["2", "0", "1", "+1"],
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-d", "none.jsonl"), "none.jsonl: there is no such file"),
        (("--offset", "3"), "data.jsonl: has no row 3"),
        (("--row", "1", "--limit", "1"), "--row runs one row; leave out --offset and --limit"),
        (("-m", "agent:nothing"), "agent has no attribute 'nothing'; it has: Divider, agent_loop"),
        (("--model", "mock:x"), "mock:x: the mocks are mock:echo, mock:tools and mock:script=FILE"),
        (("--temperature", "-1"), "--temperature -1.0 is negative"),
        (("--max-tokens", "0"), "--max-tokens 0 is not a whole number of at least 1"),
        (("--price", "x"), "--price 'x' is not PROMPT/REPLY in dollars for a million tokens, for example 0.25/2"),
        (("--map", "x"), "--map 'x' is not COLUMN=FIELD, for example question=user_prompt"),
        (("--replay", "nothing"), "--replay takes the replies of a run, and asks no model; leave out --model"),
        (("--base-url", "http://127.0.0.1:1/v1"), "mock:echo asks no server; leave out --base-url"),
        (("--model", "gpt-5-mini"), "gpt-5-mini: a key is missing; set OPENAI_API_KEY, or give --base-url"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(test, folder, arguments, said):
    done = test("--model", "mock:echo", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"test: {said}")
    assert runs(folder) == []


@pytest.mark.parametrize(("left_out", "said"), [("-m", "-m or --module names"), ("-d", "-d or --dataset names")])
def test_the_agent_and_the_dataset_are_required(forked, folder, left_out, said):
    given = {"-m": "agent:agent_loop", "-d": "data.jsonl"}
    arguments = [word for name, value in given.items() if name != left_out for word in (name, value)]
    done = forked.run("-m", "osmosis_grpc", "test", *arguments, cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith(f"test: {said}")


def test_json_has_only_records_on_stdout_although_the_agent_prints(test):
    done = test("--model", "mock:echo", "--json")
    found = events(done)
    assert [record["event"] for record in found] == ["started", "row", "row", "row", "summary"]
    assert found[0]["schema_version"] == 1
    assert found[-1]["show"] is None
    assert done.stderr.count("the agent prints") == 3


@pytest.mark.slow
def test_a_run_with_a_mock_imports_no_grpc(folder):
    code = """
import sys
from osmosis_grpc.cli import build
try:
    build()(["test", "-m", "agent:agent_loop", "-d", "data.jsonl", "--model", "mock:echo", "-q"])
except SystemExit as end:
    print(end.code, [name for name in ("grpc", "fastapi", "pyarrow", "litellm", "openai") if name in sys.modules])
"""
    assert run("-c", code, cwd=folder).stdout.splitlines()[-1] == "0 []"


@pytest.fixture
def on_a_terminal(forked, folder):
    """Runs the command on a terminal. Returns what it wrote, and its exit code."""

    def command(*arguments, **variables):
        code, text = forked.shown(*USUAL, *arguments, cwd=folder, columns=100, **variables)
        return text, code

    return command


def plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n")


def test_a_terminal_has_a_bar_and_the_rows_that_failed(on_a_terminal, folder):
    write(folder, [*ROWS, {"user_prompt": "fail"}])
    text, code = on_a_terminal("--model", "mock:echo")
    assert code == 1
    assert "\x1b[?1049h" not in text  # the alternate screen
    assert "4 of 4 rows, 1 failed, mean reward" in plain(text)
    assert "row 3 (data.jsonl:4)  FAILED  AGENT_EXCEPTION: ValueError: \\x1b[31mI fail (at agent.py:19" in plain(text)
    assert "row 0  COMPLETED" not in text
    assert "1 failed (row 3): " in plain(text)


@pytest.mark.parametrize(
    ("arguments", "variables"), [(("--plain",), {}), ((), {"TERM": "dumb"})], ids=["--plain", "TERM=dumb"]
)
def test_plain_lines_are_used_instead_of_a_bar(on_a_terminal, folder, arguments, variables):
    text, code = on_a_terminal("--model", "mock:echo", *arguments, **variables)
    assert code == 0
    assert "\x1b" not in text
    assert "row 0  COMPLETED" in text


def test_no_color_leaves_out_the_colours(on_a_terminal, folder):
    text, code = on_a_terminal("--model", "mock:echo", NO_COLOR="1")
    assert code == 0
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", text)
    assert "3 of 3 rows" in plain(text)


def test_an_interrupt_keeps_the_rows_that_ended(forked, folder):
    slow = "\n".join(line for line in AGENT.splitlines()).replace(
        "        messages = await",
        "        import asyncio\n        if '/ 0' in str(ctx.request.messages[-1]):\n"
        "            open('began', 'w').close()\n            await asyncio.Event().wait()\n        messages = await",
    )
    (folder / "agent.py").write_text(slow)
    out, err = folder / "out", folder / "err"
    options = ("--model", "mock:echo", "--concurrency", "1", "--save-dir", "run")
    with forked.start(*USUAL, *options, cwd=folder, out=out, err=err) as process:
        wait_until((folder / "began").exists)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    assert err.read_text() == ""
    assert "\ninterrupted: 1 of 3 rows COMPLETED, " in out.read_text()
    assert json.loads((folder / "run" / "run.json").read_text())["state"] == "interrupted"
    assert len((folder / "run" / "results.jsonl").read_text().splitlines()) == 1


CLIENT = """
import json, os, sys, urllib.request
task = json.load(sys.stdin)
body = json.dumps({"model": "policy", "messages": task["messages"]}).encode()
headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
answer = json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"]
with open(os.environ["OSMOSIS_RESULT_FILE"], "w") as file:
    json.dump({"reward": float(task["label"] in answer)}, file)
"""


def test_a_run_is_not_continued_with_a_changed_program(forked, tmp_path):
    (tmp_path / "program.py").write_text(CLIENT)
    (tmp_path / "data.jsonl").write_text('{"user_prompt": "the sea", "ground_truth": "sea"}\n')
    command = (
        "-m",
        "osmosis_grpc",
        "eval",
        "--command",
        "python program.py",
        "-d",
        "data.jsonl",
        "--model",
        "mock:echo",
    )
    assert forked.run(*command, "--save-dir", "run", cwd=tmp_path).returncode == 0
    assert forked.run(*command, "--save-dir", "run", cwd=tmp_path).returncode == 0
    (tmp_path / "program.py").write_text(CLIENT + "# changed")
    again = forked.run(*command, "--save-dir", "run", cwd=tmp_path)
    assert (again.returncode, "agent (program.py)" in again.stderr) == (2, True), again.stderr


def test_a_program_runs_over_a_dataset_and_again_without_a_model(forked, tmp_path):
    (tmp_path / "program.py").write_text(CLIENT)
    rows = [{"user_prompt": "the sea", "ground_truth": "sea"}, {"user_prompt": "the sea", "ground_truth": "land"}]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data, save = ("-d", "data.jsonl"), ("--save-dir", "run")
    command = ("-m", "osmosis_grpc", "test", "--command", "python program.py", *data, "--json")
    done = forked.run(*command, "--model", "mock:echo", *save, cwd=tmp_path)
    again = forked.run("-m", "osmosis_grpc", "test", "--replay", "run", "--json", cwd=tmp_path)
    for each in (done, again):
        found = [json.loads(line) for line in each.stdout.splitlines()]
        rewards = {record["row_index"]: record["reward"] for record in found if "row_index" in record}
        assert (each.returncode, rewards) == (0, {0: 1.0, 1: 0.0}), each.stderr


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (("--command", "no-such-program"), "--command"),
        (("--command", "python x.py", "--grader", "graders:Exact"), "--grader"),
        (("--command", "python x.py", "-m", "agent:A"), "give one of them"),
    ],
)
def test_a_wrong_program_is_one_line(forked, tmp_path, agent, said):
    (tmp_path / "data.jsonl").write_text('{"user_prompt": "the sea"}\n')
    done = forked.run("-m", "osmosis_grpc", "test", *agent, "-d", "data.jsonl", "--model", "mock:echo", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
