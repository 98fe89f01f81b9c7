"""The validate command in a process of its own, on agents that an author writes, right and wrong."""

import functools
import json
import re
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import run

MODULE = """
import asyncio, time
from pydantic import BaseModel
from osmosis_grpc.rollout import (
    OpenAIFunctionParametersSchema, OpenAIFunctionPropertySchema, OpenAIFunctionSchema, OpenAIFunctionToolSchema,
    RolloutAgentLoop, tool as decorated,
)
from osmosis_grpc.rollout.tools import (
    create_tool_error_result, create_tool_result, execute_tool_calls, get_tool_call_info,
)

def tool(name="get_weather", **parameters):
    function = {"name": name, "description": "Works."}
    return {"type": "function", "function": function | ({"parameters": parameters} if parameters else {})}

WEATHER = tool(type="object", properties={"city": {"type": "string"}}, required=["city"])

class Loop(RolloutAgentLoop):
    name = "loop"

    def get_tools(self, request):
        return [WEATHER]

    async def get_weather(self, city):
        return f"sunny in {city}"

    async def execute(self, call):
        call_id, name, arguments = get_tool_call_info(call)
        return create_tool_result(call_id, str(await getattr(self, name)(**arguments)))

    async def answer(self, call):
        try:
            return await self.execute(call)
        except Exception as error:
            return create_tool_error_result(call["id"], str(error) or type(error).__name__)

    async def run(self, ctx):  # loop
        messages = list(ctx.request.messages)
        answer = self.answer if asyncio.iscoroutinefunction(self.execute) else self.execute
        for _ in range(ctx.request.max_turns):
            result = await ctx.chat(messages)
            messages.append(result.message)
            if not result.has_tool_calls:
                break
            messages += await execute_tool_calls(result.tool_calls, answer)
        return ctx.complete(messages, reward=1.0)

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

    def write(self, source: str) -> None:
        self.file.write_text(MODULE + textwrap.dedent(source))

    def line(self, mark: str) -> int:
        (line,) = [n for n, text in enumerate(self.file.read_text().splitlines(), 1) if text.endswith(f"  # {mark}")]
        return line

    def validate(self, *arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
        return self.run("-c", COMMAND.format(before=before), *arguments, cwd=self.folder)

    def rows(self, *arguments: str, before: str = "") -> list[dict]:
        """The findings of `-m agent:Agent`; the exit code and the final record fit them."""
        done = self.validate("-m", "agent:Agent", "--json", *arguments, before=before)
        assert done.stdout, done.stderr
        *found, last = [row for row in map(json.loads, done.stdout.splitlines()) if row["event"] != "run"]
        errors = sum(row["severity"] == "error" for row in found)
        assert (last["event"], last["valid"], last["errors"]) == ("validated", not errors, errors)
        assert last["warnings"] == len(found) - errors
        assert done.returncode == int(errors > 0)
        assert all(row["event"] == "finding" and row["message"] and row["hint"] for row in found)
        return found

    def findings(self, *arguments: str, before: str = "") -> list[tuple[str, str, int]]:
        """Severity, code and line of each finding."""
        found = self.rows(*arguments, before=before)
        assert {row["file"] for row in found} <= {str(self.file)}
        return [(row["severity"], row["code"], row["line"]) for row in found]


@pytest.fixture
def here(tmp_path, forked):
    return Here(tmp_path, forked.run)


@pytest.fixture
def outside(tmp_path):
    """The same, with Python started for each command."""
    return Here(tmp_path, functools.partial(run, "-W", "error"))


# The output


def test_the_output_of_a_good_agent(here):
    done = here.validate("-m", "osmosis_grpc.testing.calculator:agent_loop", "--run")
    assert (done.returncode, done.stderr) == (0, "")
    text = re.sub(r"\d+\.\d+ m?s", "TIME", done.stdout)
    assert text.splitlines() == [
        "calculator (osmosis_grpc.testing.calculator:agent_loop): valid",
        "  conversation (main)",
        "    user: What is (2 + 3) * 4?",
        '    1 assistant calls add {"a": 1, "b": 1}',
        "        result (TIME): 2.0",
        '    2 assistant calls subtract {"a": 1, "b": 1}',
        "        result (TIME): 0.0",
        '    2 assistant calls multiply {"a": 1, "b": 1}',
        "        result (TIME): 1.0",
        '    2 assistant calls divide {"a": 1, "b": 1}',
        "        result (TIME): 1.0",
        "    3 assistant: I called every tool.",
        "      #### 20",
        "  COMPLETED: 3 turns, 4 tool calls, reward 1, TIME",
        "1 agent, 0 errors, 0 warnings",
    ]


def test_the_output_of_an_agent_that_is_not_valid(here):
    here.write("""
        class Agent(Loop):
            def get_tools(self, request):  # tools
                return [tool("a") | {"function": 3}, {"type": "function", "function": {"name": "sub"}}]
    """)
    done = here.validate("-m", "agent:Agent")
    assert (done.returncode, done.stderr) == (1, "")
    place = f"{here.file}:{here.line('tools')}"
    assert done.stdout.splitlines() == [
        "loop (agent:Agent): not valid",
        f"  error INVALID_TOOL {place}",
        "    tools[0]: function is 3, not a dict with name, description and parameters",
        "    hint: correct function in the tool's schema",
        f"  warning DOUBTFUL_TOOLS {place}",
        "    tools[1] (sub): function.description is missing, not a sentence, by which the model chooses",
        "    hint: correct function.description in the tool's schema",
        "1 agent, 1 error, 1 warning",
    ]


def test_what_agents_print_does_not_reach_the_records(outside):
    outside.write("""
        import atexit, os, subprocess

        atexit.register(print, "printed at the exit")

        def noise(where):
            print("printed by", where)
            os.write(1, f"written by {where}\\n".encode())
            subprocess.run(["echo", "echoed by", where])

        noise("the module")

        class Agent(Loop):
            def get_tools(self, request):
                noise("get_tools")
                return []

            async def run(self, ctx):
                noise("run")
                return await super().run(ctx)
    """)
    done = outside.validate("-m", "agent:Agent", "--run", "--json")
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == ["run", "validated"]
    assert "printed at the exit" in done.stderr
    for where in ("the module", "get_tools", "run"):
        assert all(f"{verb} by {where}" in done.stderr for verb in ("printed", "written", "echoed"))


def test_what_an_agent_says_cannot_steer_the_terminal(here):
    here.write("""
        class Agent(Loop):
            name = "loop\\x1b[2J"

            async def get_weather(self, city):
                return "\\x1b]0;title\\x07 \\x9b31m \\u202e right to left \\r\\x08"

            async def run(self, ctx):
                await super().run(ctx)
                raise ValueError("\\x1b[31mred")
    """)
    done = here.validate("--run", "-m", "agent:Agent")
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert [char for char in said if not char.isprintable() and char != "\n"] == []
    assert "\\x1b[31mred" in said


# What cannot be loaded


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("nowhere:agent", "there is no module 'nowhere'"),
        ("agent", "'agent' is not MODULE:ATTRIBUTE"),
        ("agent:nothing", "agent has no attribute 'nothing'; it has: Loop ("),
        ("json:agent", "json has no attribute 'agent', and no agent loop ("),
        ("own/three:agent", "'own/three:agent' names a file; name the module: own.three:agent"),
        ("own/three.py", "there is no folder 'own' in "),
        ("{folder}/own/three.py:agent", "name the module: own.three:agent"),
        ("../three.py:agent", "name the module: three:agent, from the folder .."),
        ("own.three.agent", "'own.three.agent' is not MODULE:ATTRIBUTE; own.three:agent is"),
        ("agent:none", "agent:none is empty"),
    ],
)
def test_what_cannot_be_loaded(here, spec, says):
    here.write("none = []")
    done = here.validate("-m", spec.format(folder=here.folder), "--json")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("validate: ")
    assert says in line


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("raise ValueError('no\\nmodel')  # here", "ValueError: no model"),
        ("import nowhere  # here", "ModuleNotFoundError: No module named 'nowhere'"),
        ("def broken(:  # here", "SyntaxError: invalid syntax"),
        ("raise SystemExit(7)  # here", "SystemExit: 7"),
        ("class Agent(Loop): name = ' '  # here", "AgentNameError: Agent:"),
        ("class Agent(RolloutAgentLoop): name = 'a'\nAgent()  # here", "TypeError: Can't instantiate abstract class"),
    ],
)
def test_an_exception_of_the_module_is_reported_with_its_line(here, source, says):
    here.write(source)
    done = here.validate("-m", "agent:agent")
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "1 agent not loaded\n")
    assert line.startswith(f"validate: agent:agent: {says}")
    assert f"{here.file}:{here.line('here')}" in line


def test_one_that_cannot_be_loaded_does_not_hide_the_others(here):
    here.write("agents = [Loop, 3, Loop()]")
    done = here.validate("-m", "nowhere:x", "-m", "agent:agents", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 2
    assert [row["agent"] for row in rows if row["event"] == "validated"] == ["loop", None, "loop"]
    assert [row["code"] for row in rows if row["event"] == "finding"] == [
        "NOT_AN_AGENT_LOOP",
        "INVALID_AGENT_NAME",
        "GET_TOOLS_FAILED",
        "INVALID_RUN",
        "INVALID_AGENT_NAME",  # a second agent has the name
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "validate: -m or --module names an agent loop: validate -m MODULE:ATTR\n"),
        (["three:a", "four:b"], "validate: -m or --module names an agent loop: validate -m three:a -m four:b\n"),
        (["--timeout", "0", "-m", "a:b"], "validate: --timeout 0: is not between 0 and 86400 seconds\n"),
    ],
)
def test_a_wrong_option_is_one_line(here, arguments, says):
    done = here.validate(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", says)


# --run: what the agent does


def running(body: str, tools: str = "[]") -> str:
    """An agent with this `run`."""
    return f"""
class Agent(Loop):
    def get_tools(self, request):
        return {tools}

    async def run(self, ctx):  # run
        messages = list(ctx.request.messages)
{textwrap.indent(textwrap.dedent(body), " " * 8)}
"""


def one_tool(statement: str) -> str:
    """An agent whose tool does this."""
    return f"""
class Agent(Loop):
    async def get_weather(self, city):
        {statement}  # tool
"""


def executing(statement: str) -> str:
    """An agent whose function for tool calls does this."""
    return f"""
class Agent(Loop):
    async def execute(self, call):
        call_id, name, arguments = get_tool_call_info(call)
        {statement}  # tool
"""


SHAPES = """
    class Point(BaseModel):
        type: str = "function"
        function: dict = {
            "name": "point",
            "description": "A schema object of one's own.",
            "parameters": {
                "type": "object",
                "properties": {"at": {"$ref": "#/$defs/P"}, "unit": {"type": ["string", "null"]}},
                "required": ["at"],
                "$defs": {"P": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
            },
        }

    class Agent(Loop):
        def get_tools(self, request):
            city = OpenAIFunctionPropertySchema(type="string", enum=["Rome", "Oslo"])
            parameters = OpenAIFunctionParametersSchema(properties={"city": city}, required=["city"])
            function = OpenAIFunctionSchema(name="forecast", description="Works.", parameters=parameters)
            bounds = {"type": "integer", "minimum": 3, "exclusiveMaximum": 5}
            letters = {"type": "array", "items": {"type": "string", "pattern": "^[A-Z]{2}$"}, "minItems": 2}
            return [
                WEATHER, tool("nothing"), OpenAIFunctionToolSchema(function=function), Point(),
                tool("many", type="object", properties={"n": bounds, "letters": letters}, required=["n", "letters"]),
            ]

        async def nothing(self):
            return "nothing"

        async def forecast(self, city):
            return {"Rome": "dry", "Oslo": "wet"}[city]

        async def point(self, at, unit="m"):
            return at["x"] + 1

        async def many(self, n, letters):
            assert 3 <= n < 5 and len(letters) == 2 and all(len(text) == 2 and text.isupper() for text in letters)
            return len(letters)
"""
BY_HAND = """
    result = await ctx.chat(messages)
    messages.append(result.message)
    for call in result.tool_calls:
        try:
            content = str(1 / 0)  # tool
        except ArithmeticError as error:
            content = f"Error: {error}"
            ctx.record_tool_call()
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    return ctx.complete(messages)
"""
ENDLESS = """
    while True:
        messages.append((await ctx.chat(messages)).message)
        messages.append({"role": "user", "content": "go on"})
"""
GOOD_CASES = {
    "every shape of a tool": SHAPES,
    "blocks for a moment only": running(
        "time.sleep(0.05); await asyncio.to_thread(time.sleep, 0.5)\n"
        "await ctx.chat(messages)\nreturn ctx.complete(messages)"
    ),
    "the same question again": running("await ctx.chat(messages)\nawait ctx.chat(messages)\nreturn ctx.complete()"),
    "a branch": running(
        "messages.append((await ctx.chat(messages)).message)\n"
        "await ctx.chat([*messages, {'role': 'user', 'content': 'a'}])\n"
        "await ctx.chat([*messages, {'role': 'user', 'content': 'b'}])\nreturn ctx.complete(messages)"
    ),
    "another sample": running(
        "await ctx.chat(messages)\nawait ctx.chat([{'role': 'user', 'content': 'x'}], sample='other')\n"
        "return ctx.complete(messages)"
    ),
    "a judge": running(
        "from osmosis_grpc.protocol.types import ChatPurpose\nawait ctx.chat(messages)\n"
        "await ctx.chat([{'role': 'user', 'content': 'x'}], purpose=ChatPurpose.JUDGE)\nreturn ctx.complete(messages)"
    ),
}
BAD_CASES = {
    "blocks for long": (
        running("time.sleep(1.6)  # here\nawait ctx.chat(messages)\nreturn ctx.complete()"),
        "BLOCKING_CALL here",
    ),
    "a result that is not returned": (running("await ctx.chat(messages)\nctx.complete(messages)"), "BAD_RESULT run"),
    "a dict as the result": (running("return {'status': 'COMPLETED'}"), "BAD_RESULT run"),
    "a reward that is not a number": (running("return ctx.complete(messages, reward=float('nan'))"), "BAD_RESULT run"),
    "a reward that is a text": (running("return ctx.complete(messages, reward='1.0')"), "BAD_RESULT run"),
    "a call without an answer": (
        running("messages.append((await ctx.chat(messages)).message)\nreturn ctx.complete(messages)", "[tool()]"),
        "BAD_RESULT run",
    ),
    "an exception": (running("def inner():\n    raise KeyError('label')  # here\ninner()"), "RUN_FAILED here"),
    "a refused chat": (running("await ctx.chat([{'role': 'nobody', 'content': ''}])  # here"), "RUN_FAILED here"),
    "an error on purpose": (running("return ctx.error('no idea')"), "RUN_FAILED run"),
    "endless": (running(ENDLESS, "[WEATHER]"), "RUN_TIMED_OUT run"),
    "get_tools fails the second time": (
        "class Agent(Loop):\n    calls = 0\n    def get_tools(self, request):  # here\n        Agent.calls += 1\n"
        "        return [WEATHER] if Agent.calls == 1 else 1 / 0\n",
        "GET_TOOLS_FAILED here",
    ),
    "not valid, so it is not run": (
        "class Agent(Loop):\n    def get_tools(self, request):  # here\n        return 7\n"
        "    async def run(self, ctx):\n        raise SystemExit\n",
        "GET_TOOLS_FAILED here",
    ),
    "a tool that raises": (one_tool("return fetch(city)"), "TOOL_FAILED tool"),
    "a tool with a wrong lookup": (one_tool("return {}[city]"), "TOOL_FAILED tool"),
    "a tool whose exception is sent to the model": (
        executing("return create_tool_result(call_id, str(arguments['town']))"),
        "TOOL_FAILED tool",
    ),
    "a tool run by hand": (running(BY_HAND, "[WEATHER]"), "TOOL_FAILED tool"),
    "arguments that differ": (
        "class Agent(Loop):\n    async def get_weather(self, town):\n        return town\n"
        "    async def execute(self, call):\n        call_id, name, arguments = get_tool_call_info(call)\n"
        "        return create_tool_result(call_id, await self.get_weather(**arguments))  # here\n",
        "TOOL_FAILED here",
    ),
    "an unknown tool, said": (
        executing("return create_tool_error_result(call_id, f'Unknown tool: {name}')"),
        "TOOL_FAILED loop",
    ),
    "an unknown tool, as a key": (executing("raise KeyError(name)"), "TOOL_FAILED tool"),
    "an unknown tool, in words": (executing("raise ValueError(f'no function named {name!r}')"), "TOOL_FAILED tool"),
    "an unknown tool, in other words": (executing("raise RuntimeError(f'tool {name} not found')"), "TOOL_FAILED tool"),
}
DOUBTFUL_CASES = {
    "blocks for a short time": (
        running("time.sleep(0.4)  # here\nawait ctx.chat(messages)\nreturn ctx.complete()"),
        "BLOCKING_CALL here",
    ),
    "no chat": (running("ctx.chat(messages); return ctx.complete(messages)"), "NO_CHAT run"),
    "a tool that refuses": (one_tool("raise ValueError('invalid city for tool get_weather')"), "TOOL_FAILED tool"),
    "a tool that needs a file": (one_tool("return open(f'/nowhere/{city}').read()"), "TOOL_FAILED tool"),
    "a tool that is too slow": (
        "@decorated(timeout=0.05)\nasync def slow() -> str:\n    'Sleeps.'\n    await asyncio.sleep(30)\n"
        "class Agent(Loop):\n    def get_tools(self, request):\n        return (slow,)\n"
        "    async def run(self, ctx):  # run\n"
        "        return ctx.complete(await ctx.tool_loop(ctx.request.messages))\n",
        "TOOL_FAILED run",
    ),
    "a tool that is never called": (
        running(
            "messages.append((await ctx.chat(messages, tools=[WEATHER])).message)\n"
            "messages += await execute_tool_calls(messages[-1]['tool_calls'], self.execute)\n"
            "return ctx.complete(messages)",
            "[WEATHER, tool('search')]",
        ),
        "TOOLS_NEVER_CALLED run",
    ),
    "a history that is cut": (
        running(
            "messages.append((await ctx.chat(messages)).message)\n"
            "messages.append({'role': 'user', 'content': 'go on'})\n"
            "await ctx.chat(messages[-2:])\nreturn ctx.complete(messages)"
        ),
        "HISTORY_REWRITTEN run",
    ),
    "an unknown parameter": (
        running("await ctx.chat(messages, temprature=0.3, top_k=3)\nreturn ctx.complete(messages)"),
        "UNKNOWN_PARAMETER run",
    ),
}


@pytest.mark.parametrize("source", GOOD_CASES.values(), ids=GOOD_CASES)
def test_a_run_without_a_problem_has_no_finding(here, source):
    here.write(source)
    assert here.findings("--run") == []


@pytest.mark.parametrize(("source", "expected"), BAD_CASES.values(), ids=BAD_CASES)
def test_a_problem_of_a_run_is_an_error_with_its_line(here, source, expected):
    here.write(source)
    code, mark = expected.split()
    assert here.findings("--run") == [("error", code, here.line(mark))]


@pytest.mark.parametrize(("source", "expected"), DOUBTFUL_CASES.values(), ids=DOUBTFUL_CASES)
def test_what_an_author_may_intend_is_a_warning(here, source, expected):
    here.write(source)
    code, mark = expected.split()
    assert here.findings("--run") == [("warning", code, here.line(mark))]


def test_all_problems_of_a_run_are_reported_at_once(here):
    here.write(
        running(
            "time.sleep(0.5)  # blocks\nresult = await ctx.chat(messages)\n"
            "return ctx.complete([*messages, result.message], reward=float('inf'))",
            "[tool()]",
        )
    )
    assert here.findings("--run") == [
        ("error", "BAD_RESULT", here.line("run")),
        ("warning", "BLOCKING_CALL", here.line("blocks")),
    ]


def test_an_exception_of_a_tool_that_ends_run_is_reported_for_both(here):
    here.write("""
        class Agent(Loop):
            async def answer(self, call):
                return await self.execute(call)

            async def get_weather(self, city):
                raise ValueError("no such city")  # tool
    """)
    line = here.line("tool")
    assert here.findings("--run") == [("warning", "RUN_FAILED", line), ("warning", "TOOL_FAILED", line)]


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("ctx.chat(messages).message", "await ctx.chat"),
        ("ctx.chat(messages)['choices']", "await ctx.chat"),
        ("(await ctx.chat(messages)).message.content", 'message["content"]'),
        ("messages.append(await ctx.chat(messages)); await ctx.chat(messages)", ""),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_usual_mistake_has_a_hint_of_its_own(here, line, hint):
    here.write(running(line))
    (row,) = here.rows("--run")
    assert row["code"] == "RUN_FAILED"
    assert hint in row["hint"]


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ("return self.later(ctx)", "write async def run"),
        ("reply = ctx.chat(ctx.request.messages); return ctx.wait(lambda: self.awaits(reply))", "leave `await` out"),
    ],
)
def test_a_sync_run_that_mixes_in_async_code_is_told_what_to_write(here, body, hint):
    here.write(f"""
class Agent(Loop):
    def get_tools(self, request):
        return []

    def run(self, ctx):
        {body}

    async def later(self, ctx):
        return ctx.complete()

    async def awaits(self, reply):
        return await reply
""")
    (row,) = here.rows("--run")
    assert row["code"] == "RUN_FAILED"
    assert hint in row["hint"]


def test_a_tool_runner_that_is_not_async_is_named(here):
    here.write(
        "class Agent(Loop):\n    def execute(self, call):\n        return create_tool_result(call['id'], 'sunny')\n"
    )
    (row,) = here.rows("--run")
    assert (row["code"], row["severity"]) == ("TOOL_FAILED", "error")
    assert "write async def" in row["hint"]


# An agent that does not end


def test_a_run_that_never_ends_is_reported_with_the_line_where_it_waits(here):
    here.write(running("await asyncio.sleep(60)  # waits"))
    assert here.findings("--run", "--timeout", "0.5") == [("error", "RUN_TIMED_OUT", here.line("waits"))]


@pytest.mark.slow
def test_a_run_that_does_not_stop_does_not_keep_the_command(here):
    here.write(
        running(
            "while True:\n    try:\n        await asyncio.sleep(60)\n    except asyncio.CancelledError:\n        pass"
        )
    )
    assert [row["code"] for row in here.rows("--run", "--timeout", "0.5")] == ["RUN_TIMED_OUT"]


@pytest.mark.slow
def test_a_run_that_blocks_forever_does_not_keep_the_command(outside):
    outside.write(running("time.sleep(3600)  # blocks"))
    found = outside.findings("--run", "--timeout", "2", before="trial.GRACE = 3")
    assert found == [("error", "BLOCKING_CALL", outside.line("blocks"))]


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


# The conversation


def conversation(here: Here, source: str) -> list[str]:
    """The lines of the conversation that the command prints."""
    here.write(source)
    lines = here.validate("--run", "-m", "agent:Agent").stdout.splitlines()
    begins = next(index for index, line in enumerate(lines) if line.startswith("  conversation ("))
    ends = next(index for index, line in enumerate(lines) if line.startswith(("  COMPLETED: ", "  CANCELLED: ")))
    return [re.sub(r"\d+\.\d+ m?s", "TIME", line.removeprefix("    ")) for line in lines[begins + 1 : ends]]


REPLY = ["assistant: I called every tool.", "  #### 20"]


def test_each_sample_is_shown_with_its_tools_paired_with_results(here):
    body = """
        for sample in ("pro", "contra"):
            messages = list(ctx.request.messages)
            for _ in range(2):
                result = await ctx.chat(messages, sample=sample)
                messages.append(result.message)
                messages += await execute_tool_calls(result.tool_calls, self.execute)
        return ctx.complete(messages, reward=0.5)
    """
    one = [
        "user: What is (2 + 3) * 4?",
        '1 assistant calls get_weather {"city": "text"}',
        "    result (TIME): sunny in text",
        f"2 {REPLY[0]}",
        REPLY[1],
    ]
    assert conversation(here, running(body, "[WEATHER]")) == [*one, "  conversation (contra)", *one]


def test_each_branch_of_a_conversation_is_shown(here):
    body = """
        first = await ctx.chat(messages)
        await ctx.chat([*messages, first.message, {'role': 'user', 'content': 'one way'}])
        another = [*messages, first.message, {'role': 'user', 'content': 'another way'}]
        another.append((await ctx.chat(another)).message)
        messages = [*another, {'role': 'user', 'content': 'the end'}]
        return ctx.complete(messages)
    """
    assert conversation(here, running(body)) == [
        "user: What is (2 + 3) * 4?",
        f"1 {REPLY[0]}",
        REPLY[1],
        "user: one way",
        f"2 {REPLY[0]}",
        REPLY[1],
        "-- chat 3 begins another branch --",
        "user: another way",
        f"3 {REPLY[0]}",
        REPLY[1],
        "user: the end",
    ]


def test_a_long_conversation_is_cut(here):
    lines = conversation(here, running(ENDLESS, "[WEATHER]"))
    assert re.fullmatch(r"\.\.\. \d+ more messages", lines[-1])


# Kinds of agents that integrations add

ADD = """
@decorated
def add(a: float, b: float) -> float:
    "Adds two numbers."
    time.sleep(0.5)
    return a + b
"""
SYNC_CLASS = """
class Agent(RolloutAgentLoop):
    name = "agent"
    tools = (add,)

    def run(self, ctx):
        messages = list(ctx.request.messages)
        while True:
            time.sleep(0.3)
            reply = ctx.chat(messages)
            messages.append(reply.message)
            if not reply.has_tool_calls:
                return ctx.complete(reward=float(ctx.request.label in reply.content))
            messages += ctx.run_tools(reply)
"""
FUNCTION = """
from osmosis_grpc.rollout import rollout_agent

@rollout_agent("agent", tools=[add])
{prefix}def Agent(task, client):
    messages = list(task.messages)
    while True:
        reply = {wait}client.chat.completions.create(model="policy", messages=messages)
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return {{"reward": float(task.label in message.content)}}
        messages += {wait}task.ctx.run_tools(message)
"""


@pytest.mark.parametrize(
    "source",
    [
        SYNC_CLASS,
        pytest.param(FUNCTION.format(prefix="async ", wait="await "), marks=pytest.mark.adapters),
        pytest.param(FUNCTION.format(prefix="", wait=""), marks=pytest.mark.adapters),
    ],
    ids=["class", "async function", "sync function"],
)
def test_a_sync_agent_and_a_function_run_and_their_tools_are_called(here, source):
    here.write(ADD + source)
    done = here.validate("--run", "--json", "-m", "agent:Agent")
    records = {record["event"]: record for record in map(json.loads, done.stdout.splitlines())}
    assert "finding" not in records, records.get("finding")
    found = records["run"]
    assert (found["status"], found["reward"], found["turns"], found["tool_calls"]) == ("COMPLETED", 1.0, 2, 1)
    assert [message["role"] for message in found["messages"]] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.adapters
def test_a_bad_result_of_a_function_is_found_at_its_line(here):
    here.write(
        'from osmosis_grpc.rollout import rollout_agent\n@rollout_agent("agent")\n'
        "def Agent(task, client):  # here\n    return {'reward': 'high'}\n"
    )
    assert here.findings("--run") == [("error", "BAD_RESULT", here.line("here"))]


def test_without_the_openai_package_the_error_names_the_extra(here):
    (here.folder / "openai.py").write_text('raise ModuleNotFoundError("No module named openai", name="openai")\n')
    here.write('from osmosis_grpc.rollout import rollout_agent\n@rollout_agent("agent")\nasync def agent(t, c): ...\n')
    done = here.validate("-m", "agent:agent")
    assert done.returncode == 2
    assert "@rollout_agent needs the extra 'openai': pip install" in done.stderr


def test_an_environment_is_tried_by_test(forked):
    done = forked.run("-m", "osmosis_grpc", "validate", "-m", "env:reasoning-gym:leg_counting")
    assert done.returncode == 2
    assert "test --env reasoning-gym:leg_counting" in done.stderr
