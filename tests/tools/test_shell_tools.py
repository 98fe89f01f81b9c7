"""The tools that run commands and Python code of a model in a sandbox."""

import asyncio
import secrets

import pytest

from osmosis_grpc.protocol.errors import ToolArgumentError
from osmosis_grpc.tools import make_tool
from osmosis_grpc.tools.sandbox import LocalSandbox, SandboxError
from osmosis_grpc.tools.shell_tools import bash_tool, python_tool
from tests.tools.sandbox.left_over import processes_with
from tests.waiting import until


@pytest.fixture
async def box():
    async with LocalSandbox() as made:
        yield made


@pytest.mark.row("ARL 39")
async def test_a_command_has_its_output_its_errors_and_its_exact_exit_code(box):
    bash = bash_tool(box)
    got = await bash.run({"command": "echo out; echo err >&2; exit 42"})
    assert got == {
        "return_code": 42,
        "stdout": "out\n",
        "stderr": "err\n",
        "command": "echo out; echo err >&2; exit 42",
    }
    await bash.run({"command": "mkdir sub; [[ -d sub ]] && echo x >sub/file"})
    assert (await bash.run({"command": "cat file", "working_directory": "sub"}))["stdout"] == "x\n"


@pytest.mark.row("ARL 39")
async def test_partial_output_is_kept_at_the_time_limit_and_long_output_is_cut(box):
    bash = bash_tool(box, timeout=1, output_bytes=100)
    got = await bash.run({"command": "echo begun; sleep 600", "timeout": 0.3})
    assert (got["return_code"], got["stdout"], got["timed_out"]) == (137, "begun\n", True)
    got = await bash.run({"command": "yes"})
    assert (got["stdout"], got["stdout_truncated"], got["timed_out"]) == ("y\n" * 50, True, True)
    assert "stderr_truncated" not in got


@pytest.mark.parametrize("how", [pytest.param("time limit", marks=pytest.mark.slow), "cancel"])
@pytest.mark.row("ARL 39")
async def test_no_process_of_a_command_is_left_after_its_time_limit_and_a_cancel(box, how):
    number = str(1_000_000 + secrets.randbelow(1_000_000))
    sleep = f"sleep\0{number}"
    bash = bash_tool(box, timeout=4 if how == "time limit" else 600)
    running = asyncio.ensure_future(bash.run({"command": f"sleep {number} & setsid sleep {number} & sleep {number}"}))
    await until(lambda: len(processes_with(sleep)) == 3)
    if how == "cancel":
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    else:
        assert (await running)["timed_out"]
    assert processes_with(sleep) == []


@pytest.mark.row("ARL 39")
async def test_a_model_cannot_ask_for_more_time_than_the_author_gives(box):
    got = await bash_tool(box, timeout=0.3).run({"command": "sleep 600", "timeout": 900})
    assert got["timed_out"]


@pytest.mark.row("ARL 39")
async def test_python_code_runs_and_imports_files_of_the_folder(box):
    await box.write_file("mine.py", b"value = 7\n")
    python = python_tool(box)
    got = await python.run({"code": "import mine\nprint(mine.value, 'é')\nraise SystemExit(3)"})
    assert (got["return_code"], got["stdout"]) == (3, "7 é\n")
    assert "ZeroDivisionError" in (await python.run({"code": "1/0"}))["stderr"]


@pytest.mark.parametrize(
    ("arguments", "error", "problem"),
    [
        ({}, ToolArgumentError, "command: is missing"),
        ({"command": 5}, ToolArgumentError, "command"),
        ({"command": "true", "timeout": 0}, ToolArgumentError, "timeout"),
        ({"command": "true", "shell": "sh"}, ToolArgumentError, "shell: is not a parameter"),
        ({"command": "true", "working_directory": "../x"}, SandboxError, r"path: \.\./x is outside"),
        ({"command": "a\0b"}, SandboxError, "null character"),
    ],
)
@pytest.mark.row("ARL 39")
async def test_wrong_arguments_name_the_parameter(box, arguments, error, problem):
    with pytest.raises(error, match=problem):
        await bash_tool(box).run(arguments)


@pytest.mark.parametrize("option", ["timeout", "output_bytes"])
def test_a_bad_option_is_refused_when_the_tool_is_made(box, option):
    with pytest.raises(ValueError, match=f"{option}: -1"):
        bash_tool(box, **{option: -1})


@pytest.mark.parametrize("name", ["bash_executor", "python_executor", "file_editor", "search"])
@pytest.mark.parametrize("given", [None, LocalSandbox, "box"])
@pytest.mark.row("ARL 39")
def test_what_is_no_sandbox_is_refused_when_the_tool_is_made(name, given):
    with pytest.raises(ValueError, match=f"^sandbox: the tool {name} needs one, .* is none$"):
        make_tool(name, given)
