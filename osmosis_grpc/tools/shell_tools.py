"""Makes the tools `bash_executor` and `python_executor`. They run commands of a model in a sandbox."""

import math
from typing import Any

from osmosis_grpc.agent.tool_decorator import Tool
from osmosis_grpc.protocol.errors import ToolArgumentError
from osmosis_grpc.tools.sandbox.port import OUTPUT_BYTES, SECONDS, RunResult, Sandbox, check_sandbox

BASH = "bash_executor"
PYTHON = "python_executor"


def bash_tool(sandbox: Sandbox, *, timeout: float = SECONDS, output_bytes: int = OUTPUT_BYTES) -> Tool[..., Any]:
    """Return the tool `bash_executor`.

    Args:
        sandbox: Where the commands run.
        timeout: The most seconds of a command; a model may ask for fewer.
        output_bytes: The most bytes of standard output, and of standard error. The newest ones are kept.

    Raises:
        ValueError: An option is bad.
    """
    check_sandbox(sandbox, BASH)
    _check(timeout, output_bytes)

    async def bash_executor(command: str, working_directory: str = ".", timeout: float | None = None) -> dict[str, Any]:
        """Run a command in a new bash, and return its output and its exit code.

        Args:
            command: the command
            working_directory: the folder in which it runs, relative to the working folder
            timeout: the seconds after which it is killed
        """
        ended = await sandbox.run(
            command, cwd=working_directory, seconds=_seconds(timeout, most, BASH), output_bytes=output_bytes
        )
        return _answer(ended) | {"command": command}

    most = timeout
    return Tool(bash_executor, name=BASH, timeout=None)


def python_tool(sandbox: Sandbox, *, timeout: float = SECONDS, output_bytes: int = OUTPUT_BYTES) -> Tool[..., Any]:
    """Return the tool `python_executor`.

    Args:
        sandbox: Where the programs run.
        timeout: The most seconds of a program; a model may ask for fewer.
        output_bytes: The most bytes of standard output, and of standard error. The newest ones are kept.

    Raises:
        ValueError: An option is bad.
    """
    check_sandbox(sandbox, PYTHON)
    _check(timeout, output_bytes)

    async def python_executor(code: str, timeout: float | None = None) -> dict[str, Any]:
        """Run Python code in a new interpreter, and return what it printed and its exit code.

        Args:
            code: the code; it prints what is to be seen
            timeout: the seconds after which it is killed
        """
        ended = await sandbox.run(
            [sandbox.python, "-"],
            stdin=code.encode("utf-8", "surrogatepass"),
            seconds=_seconds(timeout, most, PYTHON),
            output_bytes=output_bytes,
        )
        return _answer(ended)

    most = timeout
    return Tool(python_executor, name=PYTHON, timeout=None)


def _check(timeout: Any, output_bytes: Any) -> None:
    if not (isinstance(timeout, int | float) and math.isfinite(timeout) and timeout > 0):
        raise ValueError(f"timeout: {timeout!r} is not a positive number of seconds")
    if not (isinstance(output_bytes, int) and output_bytes > 0):
        raise ValueError(f"output_bytes: {output_bytes!r} is not a positive integer")


def _seconds(asked: float | None, most: float, tool: str) -> float:
    if asked is None:
        return most
    if not asked > 0:
        raise ToolArgumentError("timeout: it has to be greater than 0", "", tool)
    return min(asked, most)


def _answer(ended: RunResult) -> dict[str, Any]:
    flags = {
        "stdout_truncated": ended.stdout_truncated,
        "stderr_truncated": ended.stderr_truncated,
        "timed_out": ended.timed_out,
        "disk_full": ended.disk_full,
    }
    return {
        "return_code": ended.exit_code,
        "stdout": ended.stdout.decode("utf-8", "replace"),
        "stderr": ended.stderr.decode("utf-8", "replace"),
        **{name: True for name, is_set in flags.items() if is_set},
    }
