"""The validate command in a process of its own, on modules written for the test."""

import functools
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from osmosis_grpc.agent.validator import HINTS as STATIC
from osmosis_grpc.cli.trial_findings import HINTS as RUN
from tests.processes import run

HINTS = STATIC | RUN

AGENT = """
from osmosis_grpc.rollout import RolloutAgentLoop
from osmosis_grpc.rollout.tools import create_tool_result

def tool(name="add", **more):
    return {"type": "function", "function": {"name": name, "description": "Works.", **more}}

class Good(RolloutAgentLoop):
    name = "good"

    def get_tools(self, request):
        return [tool()]

    async def run(self, ctx):
        return ctx.complete(ctx.request.messages)

"""

COMMAND = """
import typer
import osmosis_grpc.cli.trial as trial
import osmosis_grpc.cli.commands.agents as command
{before}
app = typer.Typer(pretty_exceptions_enable=False)
app.command()(command.validate)
app()
"""


class Here:
    """A folder with a module agent.py, and the command run in it."""

    def __init__(self, folder: Path, run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
        self.run = run
        self.folder = folder
        self.file = folder / "agent.py"

    def write(self, source: str, head: str = AGENT) -> None:
        self.file.write_text(head + textwrap.dedent(source))

    def place(self, mark: str) -> str:
        return f"{self.file}:{self.line(mark)}"

    def line(self, mark: str) -> int:
        (line,) = [n for n, text in enumerate(self.file.read_text().splitlines(), 1) if text.endswith(f"# {mark}")]
        return line

    def validate(self, *arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
        return self.run("-c", COMMAND.format(before=before), *arguments, cwd=self.folder)

    def findings(self, *arguments: str, before: str = "") -> list[tuple[str, str]]:
        """Code and place of each finding; the exit code and the final record fit them."""
        done = self.validate(*(arguments or ("-m", "agent:agent")), "--json", before=before)
        *found, last = [row for row in map(json.loads, done.stdout.splitlines()) if row["event"] != "run"]
        errors = sum(row["severity"] == "error" for row in found)
        assert (last["event"], last["valid"], last["errors"]) == ("validated", not errors, errors), done.stderr
        assert last["warnings"] == len(found) - errors
        assert done.returncode == int(errors > 0)
        for row in found:
            assert row["event"] == "finding"
            assert row["message"]
            assert row["hint"] == HINTS[row["code"]]
        return [(row["code"], f"{row['file']}:{row['line']}") for row in found]


@pytest.fixture
def here(tmp_path, forked):
    return Here(tmp_path, forked.run)


@pytest.fixture
def outside(tmp_path):
    """The same, with Python started for each command."""
    return Here(tmp_path, functools.partial(run, "-W", "error"))


# Exit codes


def test_a_good_agent(outside):
    done = outside.validate("-m", "osmosis_grpc.testing.calculator:agent_loop", "--run")
    assert (done.returncode, done.stderr) == (0, "")
    first, *conversation, last = done.stdout.splitlines()
    assert first == "calculator (osmosis_grpc.testing.calculator:agent_loop): valid"
    assert last == "1 agent, 0 errors, 0 warnings"
    assert conversation[:2] == ["  conversation (main)", "    user: What is (2 + 3) * 4?"]
    called = [line.split()[3] for line in conversation if "assistant calls" in line]
    assert called == ["add", "subtract", "multiply", "divide"]
    assert conversation[-1].startswith("  COMPLETED: 3 turns, 4 tool calls, reward 1, ")


def test_findings_are_shown_with_code_place_message_and_hint(outside):
    here = outside
    here.write("""
        class Agent(Good):
            def get_tools(self, request):  # tools
                return [tool(parameters=3), tool("sub", description="")]
    """)
    done = here.validate("-m", "agent:Agent")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        "good (agent:Agent): not valid",
        f"  error INVALID_PARAMETERS_TYPE {here.place('tools')}",
        "    tools[0] (add): function.parameters is 3, not a dict",
        f"    hint: {HINTS['INVALID_PARAMETERS_TYPE']}",
        f"  warning MISSING_FUNCTION_DESCRIPTION {here.place('tools')}",
        "    tools[1] (sub): function.description is '', not a sentence",
        f"    hint: {HINTS['MISSING_FUNCTION_DESCRIPTION']}",
        "1 agent, 1 error, 1 warning",
    ]


def test_warnings_do_not_fail(here):
    here.write("""
        class Agent(Good):
            def get_tools(self, request): ...  # tools

        agent = Agent()
    """)
    assert here.findings() == [("GET_TOOLS_RETURNS_NONE", here.place("tools"))]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("nowhere:agent", "there is no module 'nowhere'"),
        ("agent:nothing", "agent has no attribute 'nothing'"),
        ("agent", "'agent' is not MODULE:ATTRIBUTE"),
        ("agent:nothing", "agent has no attribute 'nothing'; it has: Good ("),
        ("json:agent", "json has no attribute 'agent', and no agent loop ("),
        ("osmosis_grpc.agentic:agent", "osmosis_grpc.agentic has no attribute 'agent'; it has: coding, react, tool ("),
        ("own/three:agent", "'own/three:agent' names a file; name the module: own.three:agent"),
        ("./three.py:agent", "name the module: three:agent"),
        ("own/three.py", "there is no folder 'own' in "),
        ("{folder}/own/three.py:agent", "name the module: own.three:agent"),
        ("../three.py:agent", "name the module: three:agent, from the folder .."),
        ("own.three.agent", "'own.three.agent' is not MODULE:ATTRIBUTE; own.three:agent is"),
        ("agent:none", "agent:none is empty"),
        (".agent:none", "TypeError"),
    ],
)
def test_what_cannot_be_loaded(here, spec, says):
    here.write("none = []")
    done = here.validate("-m", spec.format(folder=here.folder), "--json")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("validate: ")
    assert says in line


def test_an_agent_loop_without_its_option_is_named_with_it(here):
    done = here.validate("three:agent_loop", "four:agent")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(": validate -m three:agent_loop -m four:agent\n")


@pytest.mark.parametrize("command", ["validate", "replay", "demo"])
def test_the_help_of_flags_names_no_argument_and_breaks_no_line(forked, command):
    done = forked.run("-m", "osmosis_grpc", command, "--help")
    assert done.returncode == 0
    assert "<bool>" not in done.stdout
    assert re.search(r"--json +\w", done.stdout)
    if command != "demo":
        assert re.search(r"--module MODULE:ATTR .*\n? *\[required\]", done.stdout)
    if command == "replay":
        assert "The agents' tools run again" in done.stdout


def test_without_a_module_the_usage_is_shown(here):
    done = here.validate()
    assert (done.returncode, done.stdout) == (2, "")
    assert "--module" in done.stderr


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("raise ValueError('no\\nmodel')  # here", "ValueError: no model"),
        ("import nowhere  # here", "ModuleNotFoundError: No module named 'nowhere'"),
        ("import json; json.loads('{')  # here", "JSONDecodeError: Expecting property name"),
        ("def broken(:  # here", "SyntaxError: invalid syntax"),
        ("raise SystemExit(7)  # here", "SystemExit: 7"),
        ("from collections.abc import Sized\nSized()  # here", "TypeError: Can't instantiate abstract class Sized"),
    ],
)
def test_an_exception_of_the_module_is_reported_with_its_line(here, source, says):
    here.write(source)
    done = here.validate("-m", "agent:agent")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.startswith(f"validate: agent:agent: {says}")
    assert line.endswith(f" at {here.place('here')}")
    assert done.stdout.splitlines() == ["1 agent not loaded"]


def test_one_that_cannot_be_loaded_does_not_hide_the_others(here):
    here.write("agents = [Good, 3]")
    done = here.validate("-m", "nowhere:x", "-m", "agent:agents", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 2
    assert [(row["event"], row["agent"]) for row in rows if row["event"] == "validated"] == [
        ("validated", "good"),
        ("validated", None),
    ]
    assert [row["code"] for row in rows if row["event"] == "finding"] == [
        "NOT_AN_AGENT_LOOP",
        "MISSING_NAME",
        "MISSING_GET_TOOLS_METHOD",
        "MISSING_RUN_METHOD",
    ]


# What a server would refuse


def test_names_are_unique(here):
    here.write("""
        class Other(Good):  # here
            pass

        agents = [Good(), Other()]
    """)
    done = here.validate("-m", "agent:agents")
    assert done.returncode == 1
    assert f"error DUPLICATE_NAME {here.place('here')}" in done.stdout


def test_a_server_hosts_agent_loops_only(here):
    here.write("""
        class Duck:  # here
            name, get_tools, run = "duck", Good.get_tools, Good.run

        agent = Duck()
    """)
    assert here.findings() == [("NOT_AN_AGENT_LOOP", here.place("here"))]


# What raises while the module is imported


@pytest.mark.parametrize(
    ("name", "code"), [("", "MISSING_NAME"), ("name = ' '", "EMPTY_NAME"), ("name = 7", "INVALID_NAME_TYPE")]
)
@pytest.mark.parametrize("decorator", ["", "@print\n@(lambda cls: cls)\n"])
def test_a_name_that_stops_the_import(here, name, code, decorator):
    here.write(f"""
class Named:
    @staticmethod
    def make(): ...

{decorator}class Agent(RolloutAgentLoop):  # here
    {name or "..."}
    get_tools = Good.get_tools
    run = Good.run
    """)
    done = here.validate("-m", "agent:Good")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.startswith(f"validate: agent:Good: the module cannot be imported: {code}: class Agent: ")
    assert line.endswith(f" at {here.place('here')}; {HINTS[code]}")
    assert done.stdout.splitlines() == ["1 agent not loaded"]


@pytest.mark.parametrize("how", ["Agent", "Agent()", "make()"])
def test_a_missing_method(here, how):
    here.write(f"""
class Agent(RolloutAgentLoop):  # here
    name = "half"

def make():
    return Agent()

agent = {how}
    """)
    place = here.place("here")
    assert here.findings() == [("MISSING_RUN_METHOD", place)], "an agent without get_tools has no tools"


def test_a_missing_run_is_reported_with_the_other_problems(here):
    here.write("""
        class Agent(RolloutAgentLoop):  # here
            get_tools = Good.get_tools

        agent = Agent()
    """)
    place = here.place("here")
    assert here.findings() == [("MISSING_NAME", place), ("MISSING_RUN_METHOD", place)]


# --json


def test_what_the_module_prints_does_not_reach_stdout(outside):
    here = outside
    here.write("""
        import atexit, os, subprocess

        atexit.register(print, "printed at the exit")

        def noise(where):
            print("printed by", where)
            os.write(1, f"written by {where}\\n".encode())
            subprocess.run(["echo", "echoed by", where])

        noise("the module")

        class Agent(Good):
            def get_tools(self, request):
                noise("get_tools")
                return [tool(description="\\udc80")]

            async def run(self, ctx):
                noise("run")
                return ctx.complete(ctx.request.messages)
    """)
    done = here.validate("-m", "agent:Agent", "--run", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["event"], row.get("code"), row["module"], row["agent"]) for row in rows] == [
        ("finding", "INVALID_TOOL_TYPE", "agent:Agent", "good"),
        ("validated", None, "agent:Agent", "good"),
    ]
    assert set(rows[0]) == {"event", "module", "agent", "code", "message", "hint", "file", "line", "severity"}
    assert set(rows[1]) == {"event", "module", "agent", "valid", "errors", "warnings"}
    assert "printed at the exit" in done.stderr
    for verb in ("printed", "written", "echoed"):
        assert f"{verb} by the module" in done.stderr
        assert f"{verb} by get_tools" in done.stderr


def test_what_the_run_prints_does_not_reach_stdout_either(here):
    here.write("""
        class Agent(Good):
            async def run(self, ctx):
                print("printed by run")
                await ctx.chat(ctx.request.messages)
                return ctx.complete(ctx.request.messages)
    """)
    done = here.validate("-m", "agent:Agent", "--run", "--json")
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == ["run", "validated"]
    assert "printed by run" in done.stderr


# --run


def running(here: Here, body: str, *options: str, tools: str = "[]", before: str = "") -> list[tuple[str, str]]:
    here.write(f"""
import asyncio, time

class Agent(Good):
    def get_tools(self, request):
        return {tools}

    async def run(self, ctx):  # run
        messages = list(ctx.request.messages)
{textwrap.indent(textwrap.dedent(body), " " * 8)}

agent = Agent()
    """)
    return here.findings("-m", "agent:agent", "--run", *options, before=before)


@pytest.mark.parametrize(("seconds", "code"), [(0.4, "BRIEF_BLOCK"), (1.1, "BLOCKING_CALL")])
def test_code_that_blocks_the_event_loop(here, seconds, code):
    found = running(
        here,
        f"""
        time.sleep({seconds})  # blocks
        await ctx.chat(messages)
        return ctx.complete(messages)
    """,
    )
    assert found == [(code, here.place("blocks"))]


@pytest.mark.slow
def test_the_message_of_a_blocking_call_names_time_and_function(here):
    running(
        here,
        """
        time.sleep(0.5)  # blocks
        return ctx.complete(messages)
    """,
    )
    done = here.validate("-m", "agent:agent", "--run")
    place = re.escape(str(here.place("blocks")))
    assert re.search(rf"the event loop was blocked for \d\.\d\d s at {place} in run", done.stdout)


def test_what_blocks_for_a_moment_only_is_fine(here):
    assert (
        running(
            here,
            """
        time.sleep(0.05)
        await asyncio.to_thread(time.sleep, 0.5)
        await ctx.chat(messages)
        return ctx.complete(messages)
    """,
        )
        == []
    )


@pytest.mark.parametrize("body", ["ctx.complete(messages)", "return", "return {'status': 'COMPLETED'}"])
def test_result_not_returned(here, body):
    assert running(here, body) == [("RESULT_NOT_RETURNED", here.place("run"))]


@pytest.mark.parametrize(
    ("reward", "code"),
    [("float('nan')", "NON_FINITE_REWARD"), ("float('-inf')", "NON_FINITE_REWARD"), ("'1.0'", "BAD_REWARD")],
)
def test_a_reward_that_is_none(here, reward, code):
    assert running(here, f"return ctx.complete(messages, reward={reward})") == [(code, here.place("run"))]


@pytest.mark.slow
def test_tool_call_unanswered(here):
    found = running(
        here,
        """
        result = await ctx.chat(messages)
        messages.append(result.message)
        return ctx.complete(messages)
    """,
        tools="[tool()]",
    )
    assert found == [("TOOL_CALL_UNANSWERED", here.place("run"))]
    done = here.validate("-m", "agent:agent", "--run")
    assert re.search(r"final_messages\[1\] calls add \(call_\w+\), and no tool message answers it", done.stdout)


def test_an_answered_tool_call_is_fine(here):
    assert (
        running(
            here,
            """
        result = await ctx.chat(messages)
        messages.append(result.message)
        messages += [create_tool_result(call["id"], "5") for call in result.tool_calls]
        return ctx.complete(messages, reward=1)
    """,
            tools="[tool()]",
        )
        == []
    )


def test_an_agent_without_tools_is_not_asked_for_any(here):
    assert (
        running(
            here,
            """
        result = await ctx.chat(messages)
        return ctx.complete([*messages, result.message])
    """,
            tools="[]",
        )
        == []
    )


def test_an_exception_of_run_is_reported_with_its_line(here):
    found = running(
        here,
        """
        def inner():
            raise KeyError("label")  # raises
        inner()
    """,
    )
    assert found == [("RUN_FAILED", here.place("raises"))]
    assert "run raised KeyError: 'label'" in here.validate("-m", "agent:agent", "--run").stdout


def test_a_chat_that_the_engine_refuses_is_reported_with_the_line_of_the_agent(here):
    found = running(
        here,
        """
        await ctx.chat([{"role": "nobody", "content": ""}])  # refused
    """,
    )
    assert found == [("RUN_FAILED", here.place("refused"))]


@pytest.mark.parametrize("body", ["return ctx.error('no idea')", "return ctx.complete(7)"])
def test_a_run_that_fails_without_an_exception(here, body):
    assert running(here, body) == [("RUN_FAILED", here.place("run"))]


def test_a_run_that_never_ends_is_reported_with_the_line_where_it_waits(here):
    found = running(
        here,
        """
        await asyncio.sleep(60)  # waits
    """,
        "--timeout",
        "0.5",
    )
    assert found == [("RUN_TIMED_OUT", here.place("waits"))]


@pytest.mark.slow
def test_a_run_that_does_not_stop_does_not_keep_the_command(here):
    found = running(
        here,
        """
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass
    """,
        "--timeout",
        "0.5",
    )
    assert [code for code, _ in found] == ["RUN_TIMED_OUT"]


def test_a_workflow_that_asks_over_http_ends_without_a_traceback(here):
    here.write("""
import urllib.request, json, asyncio
from osmosis_grpc.rollout import AgentWorkflow, get_rollout_context

class Asks(AgentWorkflow):
    async def run(self, ctx):
        context = get_rollout_context()
        data = json.dumps({"model": "policy", "messages": ctx.prompt}).encode()
        headers = {"authorization": "Bearer " + context.api_key, "content-type": "application/json"}
        request = urllib.request.Request(context.chat_completions_url + "/chat/completions", data, headers)
        await asyncio.to_thread(urllib.request.urlopen, request)
    """)
    done = here.validate("-m", "agent:Asks", "--run")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_run_that_blocks_forever_does_not_keep_the_command(outside):
    here = outside
    found = running(
        here,
        """
        time.sleep(3600)  # blocks
    """,
        "--timeout",
        "2",
        before="trial.GRACE = 3",
    )
    assert found == [("BLOCKING_CALL", here.place("blocks"))]


def test_all_problems_of_a_run_are_reported_at_once(here):
    found = running(
        here,
        """
        time.sleep(0.5)  # blocks
        result = await ctx.chat(messages)
        return ctx.complete([*messages, result.message], reward=float("inf"))
    """,
        tools="[tool()]",
    )
    run = here.place("run")
    assert found == [("NON_FINITE_REWARD", run), ("BRIEF_BLOCK", here.place("blocks"))]


def test_get_tools_that_fails_the_second_time(here):
    here.write("""
        class Agent(Good):
            calls = 0

            def get_tools(self, request):  # tools
                self.calls += 1
                return [tool()] if self.calls == 1 else 1 / 0

        agent = Agent()
    """)
    assert here.findings("-m", "agent:agent", "--run") == [("GET_TOOLS_EXCEPTION", here.place("tools"))]


def test_an_agent_that_is_not_valid_is_not_run(here):
    assert running(here, "raise SystemExit", tools="7") == [
        ("GET_TOOLS_INVALID_TYPE", f"{here.file}:{here.line('run') - 3}")
    ]


# Startup


def test_importing_the_command_imports_nothing_heavy():
    check = "import sys, osmosis_grpc.cli.commands; print(*{'grpc', 'numpy', 'fastapi', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("body", ["ctx.chat(messages); return ctx.complete(messages)", "return ctx.complete(messages)"])
def test_an_agent_that_asks_no_chat_is_warned(here, body):
    assert running(here, body) == [("NO_CHAT", here.place("run"))]


@pytest.mark.parametrize(
    ("body", "code", "hint"),
    [
        ("return self.later(ctx)", "RUN_NOT_ASYNC", "write async def run"),
        (
            "reply = ctx.chat(ctx.request.messages); return ctx.wait(lambda: self.awaits(reply))",
            "AWAIT_IN_SYNC_RUN",
            "leave `await` out",
        ),
    ],
)
def test_a_sync_run_that_mixes_in_async_code_is_told_what_to_write(here, body, code, hint):
    here.write(f"""
class Agent(Good):
    tools = ()

    def get_tools(self, request):
        return []

    def run(self, ctx):
        {body}

    async def later(self, ctx):
        return ctx.complete()

    async def awaits(self, reply):
        return await reply

agent = Agent()
""")
    ((found, _),) = here.findings("-m", "agent:agent", "--run")
    assert (found, hint in HINTS[found]) == (code, True)


def test_a_tool_that_is_too_slow_says_how_to_give_it_time(here):
    here.write("""
import asyncio

from osmosis_grpc.rollout import tool

@tool(timeout=0.05)
async def slow() -> str:
    "Sleeps."
    await asyncio.sleep(30)
    return ""

class Agent(Good):
    tools = (slow,)

    def get_tools(self, request):
        return self.tools

    async def run(self, ctx):
        return ctx.complete(await ctx.tool_loop(ctx.request.messages))

agent = Agent()
""")
    ((code, _),) = here.findings("-m", "agent:agent", "--run")
    assert code == "TOOL_TIMED_OUT"
