"""validate --run as an agent author meets it: twelve agents, right and wrong, and what is said of each."""

import json
import re
import textwrap
from dataclasses import dataclass

import pytest

from osmosis_grpc.cli.trial import MOST_CHATS

MODULE = """
import asyncio
import time

from pydantic import BaseModel

from osmosis_grpc.rollout import (
    OpenAIFunctionParametersSchema,
    OpenAIFunctionPropertySchema,
    OpenAIFunctionSchema,
    OpenAIFunctionToolSchema,
    RolloutAgentLoop,
)
from osmosis_grpc.rollout.tools import (
    create_tool_error_result,
    create_tool_result,
    execute_tool_calls,
    get_tool_call_info,
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

    async def run(self, ctx):  # run
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


@dataclass
class Agent:
    body: str
    findings: list[tuple[str, str]]
    """Code, and the mark of the line."""
    shows: str
    """What the text has, besides."""
    options: tuple[str, ...] = ()


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

AGENTS = {
    "good": Agent("class Agent(Loop): ...", [], "COMPLETED: 2 turns, 1 tool call, reward 1, "),
    "every shape of a tool": Agent(SHAPES, [], "COMPLETED: 3 turns, 5 tool calls, reward 1, "),
    "a tool that raises": Agent(
        """
        class Agent(Loop):
            async def get_weather(self, city):
                return fetch(city)  # raises
        """,
        [("TOOL_RAISED", "raises")],
        'the tool get_weather raised NameError: name \'fetch\' is not defined, called with {"city": "text"}',
    ),
    "a tool whose exception is sent to the model": Agent(
        """
        class Agent(Loop):
            async def execute(self, call):
                call_id, name, arguments = get_tool_call_info(call)
                try:
                    return create_tool_result(call_id, str(arguments["town"]))  # raises
                except Exception as error:
                    return create_tool_error_result(call_id, str(error))
        """,
        [("TOOL_RAISED", "raises")],
        "the tool get_weather raised KeyError: 'town'",
    ),
    "a tool run by hand that raises": Agent(
        """
        class Agent(Loop):
            async def run(self, ctx):
                messages = list(ctx.request.messages)
                result = await ctx.chat(messages)
                messages.append(result.message)
                for call in result.tool_calls:
                    try:
                        content = str(1 / 0)  # raises
                    except ArithmeticError as error:
                        content = f"Error: {error}"
                        ctx.record_tool_call()
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
                return ctx.complete(messages)
        """,
        [("TOOL_RAISED", "raises")],
        "the tool get_weather raised ZeroDivisionError: division by zero",
    ),
    "a tool that raises out of run": Agent(
        """
        class Agent(Loop):
            async def run(self, ctx):
                result = await ctx.chat(list(ctx.request.messages))
                return await self.call(result.tool_calls[0])

            async def call(self, call):
                return TOOLS[call["function"]["name"]]  # raises
        """,
        [("RUN_FAILED", "raises")],
        "run raised NameError: name 'TOOLS' is not defined, after a reply that calls get_weather",
    ),
    "a tool that blocks": Agent(
        """
        class Agent(Loop):
            def get_tools(self, request):
                return [tool("quick"), tool("slow")]

            async def quick(self):
                await asyncio.sleep(0.3)

            async def slow(self):
                time.sleep(0.6)  # blocks
        """,
        [("BRIEF_BLOCK", "blocks")],
        "the tool slow blocked the event loop for ",
    ),
    "a tool that is never called": Agent(
        """
        class Agent(Loop):
            def get_tools(self, request):
                return [WEATHER, tool("search")]

            async def run(self, ctx):  # run
                messages = list(ctx.request.messages)
                messages.append((await ctx.chat(messages, tools=[WEATHER])).message)
                messages += await execute_tool_calls(messages[-1]["tool_calls"], self.execute)
                return ctx.complete(messages)
        """,
        [("TOOLS_NEVER_CALLED", "run")],
        "1 tool was never called: search; run ended after 1 chat",
    ),
    "arguments that differ from the schema": Agent(
        """
        class Agent(Loop):
            async def get_weather(self, town):
                return town

            async def execute(self, call):
                call_id, name, arguments = get_tool_call_info(call)
                return create_tool_result(call_id, await self.get_weather(**arguments))  # raises
        """,
        [("TOOL_ARGUMENTS_DIFFER", "raises")],
        'got an unexpected keyword argument \'city\', called with {"city": "text"}',
    ),
    "a tool that the agent does not know": Agent(
        """
        class Agent(Loop):
            async def execute(self, call):
                call_id, name, arguments = get_tool_call_info(call)
                return create_tool_error_result(call_id, f"Unknown tool: {name}")
        """,
        [("TOOL_UNKNOWN", "run")],
        "the tool get_weather answered with an error: 'Unknown tool: get_weather'",
    ),
    "several samples": Agent(
        """
        class Agent(Loop):
            async def run(self, ctx):
                for sample in ("pro", "contra"):
                    messages = list(ctx.request.messages)
                    for _ in range(2):
                        result = await ctx.chat(messages, sample=sample)
                        messages.append(result.message)
                        messages += await execute_tool_calls(result.tool_calls, self.execute)
                return ctx.complete(messages, reward=0.5)
        """,
        [],
        "COMPLETED: 4 turns, 2 tool calls, reward 0.5, ",
    ),
    "an endless one": Agent(
        """
        class Agent(Loop):
            async def run(self, ctx):  # run
                messages = list(ctx.request.messages)
                while True:
                    messages.append((await ctx.chat(messages)).message)
                    messages.append({"role": "user", "content": "go on"})
        """,
        [("MAX_TURNS_IGNORED", "run")],
        f"it asked for more than {MOST_CHATS} chats, and max_turns is 10",
    ),
    "one that hangs": Agent(
        """
        class Agent(Loop):
            async def get_weather(self, city):
                await asyncio.Event().wait()  # waits
        """,
        [("RUN_TIMED_OUT", "waits")],
        "the agent_timeout of 1 s ran out; it was doing: tool get_weather, and before that: chat main 1",
        ("--timeout", "1"),
    ),
}


def write(folder, body):
    file = folder / "agent.py"
    file.write_text(MODULE + textwrap.dedent(body))
    return {
        found[1]: n
        for n, line in enumerate(file.read_text().splitlines(), 1)
        if (found := re.search(r"  # (\w+)$", line))
    }


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)
def test_validate_has_the_right_verdict(forked, tmp_path, agent):
    lines = write(tmp_path, agent.body)
    command = ("-m", "osmosis_grpc", "validate", "--run", "-m", "agent:Agent", *agent.options)
    done = forked.run(*command, "--json", cwd=tmp_path)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    found = [row for row in rows if row["event"] == "finding"]
    assert [(row["code"], row["file"], row["line"]) for row in found] == [
        (code, str(tmp_path / "agent.py"), lines[mark]) for code, mark in agent.findings
    ]
    valid = all(row["severity"] == "warning" for row in found)
    assert (rows[-1]["valid"], done.returncode) == (valid, int(not valid))
    assert done.stderr == ""

    text = forked.run(*command, cwd=tmp_path)
    first, *_ = text.stdout.splitlines()
    assert first == f"loop (agent:Agent): {'valid' if valid else 'not valid'}"
    assert "  conversation (" in text.stdout
    assert "    user: What is (2 + 3) * 4?" in text.stdout
    assert agent.shows in text.stdout
    assert (text.returncode, text.stderr) == (done.returncode, "")


def test_the_conversation_pairs_tools_with_results(forked, tmp_path):
    write(tmp_path, AGENTS["several samples"].body)
    done = forked.run("-m", "osmosis_grpc", "validate", "--run", "-m", "agent:Agent", cwd=tmp_path)
    conversation = [re.sub(r"\d+\.\d+ m?s", "TIME", line) for line in done.stdout.splitlines()[1:-1]]
    one = [
        "    user: What is (2 + 3) * 4?",
        '    1 assistant calls get_weather {"city": "text"}',
        "        result (TIME): sunny in text",
        "    2 assistant: I called every tool.",
        "      #### 20",
    ]
    assert conversation == [
        "  conversation (pro)",
        *one,
        "  conversation (contra)",
        *one,
        "  COMPLETED: 4 turns, 2 tool calls, reward 0.5, TIME",
    ]


def test_what_an_agent_says_cannot_steer_the_terminal(forked, tmp_path):
    write(
        tmp_path,
        """
        class Agent(Loop):
            name = "loop\\x1b[2J"

            async def get_weather(self, city):
                return "\\x1b]0;title\\x07 \\x9b31m \\u202e right to left \\r\\x08"

            async def run(self, ctx):
                await super().run(ctx)
                raise ValueError("\\x1b[31mred")  # raises
    """,
    )
    done = forked.run("-m", "osmosis_grpc", "validate", "--run", "-m", "agent:Agent", cwd=tmp_path)
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert [char for char in said if not char.isprintable() and char != "\n"] == []
    assert "\\x1b[31mred" in said


def test_a_tool_that_needs_what_is_not_here_is_a_warning(forked, tmp_path):
    write(
        tmp_path,
        """
        class Agent(Loop):
            async def get_weather(self, city):
                return open(f"/nowhere/{city}").read()  # raises
    """,
    )
    done = forked.run("-m", "osmosis_grpc", "validate", "--run", "-m", "agent:Agent", cwd=tmp_path)
    assert done.returncode == 0
    assert "warning TOOL_FAILED" in done.stdout
    assert "the tool get_weather raised FileNotFoundError" in done.stdout


def test_a_bad_time_limit_is_refused(forked, tmp_path):
    done = forked.run("-m", "osmosis_grpc", "validate", "--run", "--timeout", "0", "-m", "a:b", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "validate: --timeout 0: is not between 0 and 86400 seconds\n"


@pytest.mark.slow
def test_the_habits_of_openai_users_are_named(forked, tmp_path):
    for line, hint in (
        ("result.choices[0].message", "use result.message"),
        ('result["choices"]', "use result.message"),
        ("result.message.content", 'message["content"]'),
        ("result.tool_calls[0].function.name", 'call["function"]["name"]'),
    ):
        write(
            tmp_path,
            f"""
            class Agent(Loop):
                async def run(self, ctx):
                    result = await ctx.chat(list(ctx.request.messages))
                    return {line}
        """,
        )
        done = forked.run("-m", "osmosis_grpc", "validate", "--run", "-m", "agent:Agent", cwd=tmp_path)
        assert done.returncode == 1
        assert hint in done.stdout, line


def verdict(forked, folder, body):
    """Codes with severity, and the text, of a run of the agent."""
    write(folder, body)
    command = ("-m", "osmosis_grpc", "validate", "--run", "-m", "agent:Agent")
    rows = map(json.loads, forked.run(*command, "--json", cwd=folder).stdout.splitlines())
    codes = [(row["severity"], row["code"]) for row in rows if row["event"] == "finding"]
    return codes, forked.run(*command, cwd=folder).stdout


def one_tool(statement, tool="WEATHER"):
    return f"""
        class Agent(Loop):
            def get_tools(self, request):
                return [{tool}]

            async def get_weather(self, city):
                {statement}
    """


def chats(*lines):
    body = "\n".join(f"                {line}" for line in lines)
    return f"""
        class Agent(Loop):
            def get_tools(self, request):
                return []

            async def run(self, ctx):
                messages = list(ctx.request.messages)
{body}
                return ctx.complete(messages)
    """


def test_a_tool_runner_that_is_not_async_is_named(forked, tmp_path):
    codes, text = verdict(
        forked,
        tmp_path,
        """
        class Agent(Loop):
            def execute(self, call):
                return create_tool_result(call["id"], "sunny")
    """,
    )
    assert codes == [("error", "TOOL_NOT_ASYNC")]
    assert "execute must be async def" in text
    assert "hint: write async def" in text


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ('raise ValueError("no such city")', ("warning", "TOOL_REFUSED")),
        ("return int(city)", ("warning", "TOOL_REFUSED")),
        ('raise ValueError("invalid city for tool get_weather")', ("warning", "TOOL_REFUSED")),
        ("return {}[city]", ("error", "TOOL_RAISED")),
        ("return city + 1", ("error", "TOOL_RAISED")),
    ],
)
def test_a_tool_that_refuses_a_value_is_a_warning(forked, tmp_path, statement, finding):
    codes, text = verdict(forked, tmp_path, one_tool(statement))
    assert codes == [finding]
    assert finding[0] == "error" or "put a value that it takes into `examples`" in text


def test_a_tool_whose_exception_ends_run_is_a_warning(forked, tmp_path):
    codes, text = verdict(
        forked,
        tmp_path,
        """
        class Agent(Loop):
            async def answer(self, call):
                return await self.execute(call)

            async def get_weather(self, city):
                raise ValueError("no such city")
    """,
    )
    assert codes == [("warning", "TOOL_ENDED_RUN"), ("warning", "TOOL_REFUSED")]
    assert "run ended with the exception of the tool get_weather: ValueError: no such city" in text
    assert "hint: catch it in the function that runs a call, and return create_tool_error_result" in text


@pytest.mark.parametrize(
    "statement",
    [
        "raise KeyError(name)",
        "return getattr(self, name)",
        'raise ValueError(f"Unknown tool: {name}")',
        'raise ValueError(f"no function named {name!r}")',
        'raise RuntimeError(f"tool {name} not found")',
    ],
)
def test_a_tool_name_that_the_agent_does_not_know_is_said_so(forked, tmp_path, statement):
    codes, text = verdict(
        forked,
        tmp_path,
        f"""
        class Agent(Loop):
            def get_tools(self, request):
                return [tool("uper")]

            async def execute(self, call):
                call_id, name, arguments = get_tool_call_info(call)
                {statement}
    """,
    )
    assert codes == [("error", "TOOL_UNKNOWN")]
    assert "the agent does not know the tool uper, which the model is offered" in text


@pytest.mark.parametrize(
    "again", ["messages[-2:]", "[{'role': 'user', 'content': 'x'}]", "messages[:1] + messages[2:]"]
)
def test_a_history_that_is_not_only_appended_to_is_a_warning(forked, tmp_path, again):
    codes, text = verdict(
        forked,
        tmp_path,
        chats(
            "messages.append((await ctx.chat(messages)).message)",
            "messages.append({'role': 'user', 'content': 'go on'})",
            f"messages.append((await ctx.chat({again})).message)",
        ),
    )
    assert codes == [("warning", "HISTORY_REWRITTEN")]
    assert "chat 2 of sample main does not continue an earlier chat of its sample" in text


@pytest.mark.parametrize(
    "line",
    [
        "await ctx.chat(messages[:1])",
        "await ctx.chat(messages[:2] + [{'role': 'user', 'content': 'otherwise'}])",
        "await ctx.chat([{'role': 'user', 'content': 'x'}], sample='other')",
        "await ctx.chat([{'role': 'user', 'content': 'x'}], purpose='judge')",
    ],
    ids=["the same question", "a branch", "another sample", "a judge"],
)
def test_another_branch_on_purpose_is_no_warning(forked, tmp_path, line):
    codes, _ = verdict(
        forked,
        tmp_path,
        chats(
            "from osmosis_grpc.protocol.types import ChatPurpose",
            "messages.append((await ctx.chat(messages)).message)",
            line.replace("'judge'", "ChatPurpose.JUDGE"),
        ),
    )
    assert codes == []


def test_unknown_sampling_parameters_are_warned_of(forked, tmp_path):
    parameters = "model='gpt-4o', temprature=0.3, top_p=0.5, top_k=3, max_tokens=9, seed=1, stop=['x']"
    codes, text = verdict(forked, tmp_path, chats(f"await ctx.chat(messages, {parameters})"))
    assert codes == [("warning", "UNKNOWN_PARAMETER")] * 2
    assert "ctx.chat got model, which is not a known sampling parameter\n" in text
    assert "ctx.chat got temprature, which is not a known sampling parameter; is temperature meant?\n" in text


@pytest.mark.parametrize(
    "line", ["ctx.chat(messages).message", "ctx.chat(messages)['choices']", "await ctx.chat([ctx.chat(messages)])"]
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_forgotten_await_is_named(forked, tmp_path, line):
    codes, text = verdict(forked, tmp_path, chats(line))
    assert codes == [("error", "NOT_AWAITED")]
    assert "hint: write await before the call: reply = await ctx.chat(messages)" in text


def test_a_result_in_place_of_its_message_is_named(forked, tmp_path):
    codes, text = verdict(
        forked, tmp_path, chats("messages.append(await ctx.chat(messages))", "await ctx.chat(messages)")
    )
    assert codes == [("error", "RUN_FAILED")]
    assert "a message is a dict, not a CompletionsResult; use its .message" in text


def conversation(text):
    lines = text.splitlines()
    begins = next(index for index, line in enumerate(lines) if line.startswith("  conversation ("))
    ends = next(index for index, line in enumerate(lines) if line.startswith(("  COMPLETED: ", "  CANCELLED: ")))
    return [line.removeprefix("    ") for line in lines[begins + 1 : ends]]


def test_each_branch_of_a_conversation_is_shown(forked, tmp_path):
    _, text = verdict(
        forked,
        tmp_path,
        chats(
            "first = await ctx.chat(messages)",
            "await ctx.chat([*messages, first.message, {'role': 'user', 'content': 'one way'}])",
            "another = [*messages, first.message, {'role': 'user', 'content': 'another way'}]",
            "another.append((await ctx.chat(another)).message)",
            "other = [{'role': 'user', 'content': 'quite different'}]",
            "other.append((await ctx.chat(other)).message)",
            "messages = [*another, {'role': 'user', 'content': 'the end'}]",
        ),
    )
    reply = "assistant: I called every tool."
    assert conversation(text) == [
        "user: What is (2 + 3) * 4?",
        f"1 {reply}",
        "  #### 20",
        "user: one way",
        f"2 {reply}",
        "  #### 20",
        "-- chat 3 begins another branch --",
        "user: another way",
        f"3 {reply}",
        "  #### 20",
        "user: the end",
        "-- chat 4 begins another branch --",
        "user: quite different",
        f"4 {reply}",
        "  #### 20",
    ]


def test_turns_that_repeat_are_counted(forked, tmp_path):
    _, text = verdict(forked, tmp_path, AGENTS["an endless one"].body)
    assert conversation(text) == [
        "user: What is (2 + 3) * 4?",
        '1 assistant calls get_weather {"city": "text"}',
        "    no result",
        "user: go on",
        "2 assistant: I called every tool.",
        "  #### 20",
        "user: go on",
        f"... and the same {MOST_CHATS - 3} more times",
        f"{MOST_CHATS} assistant: I called every tool.",
        "  #### 20",
    ]


def test_a_long_conversation_is_cut(forked, tmp_path):
    _, text = verdict(
        forked, tmp_path, chats("messages += [{'role': 'user', 'content': str(number)} for number in range(40)]")
    )
    assert conversation(text)[-2:] == ["user: 28", "... 11 more messages"]
