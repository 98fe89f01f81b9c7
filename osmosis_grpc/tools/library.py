"""Makes the tools of this package by name, and the tool `finish`."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

from osmosis_grpc.agent.tool_decorator import Tool
from osmosis_grpc.tools.calculator import calculator_tool
from osmosis_grpc.tools.file_editor import file_editor_tool
from osmosis_grpc.tools.sandbox.port import Sandbox
from osmosis_grpc.tools.search import search_tool
from osmosis_grpc.tools.shell_tools import bash_tool, python_tool

FINISH = "finish"


def finish_tool() -> Tool[..., Any]:
    """Return the tool. An agent ends its rollout after a call of it; the answer is in the result."""

    async def finish(
        answer: str, reasoning: str | None = None, status: Literal["success", "partial", "failed"] = "success"
    ) -> dict[str, Any]:
        """End the task with an answer.

        Args:
            answer: the final answer
            reasoning: why the answer is right
            status: whether the task was done
        """
        result: dict[str, Any] = {"answer": answer, "status": status, "completed": True}
        return result if reasoning is None else result | {"reasoning": reasoning}

    return Tool(finish, name=FINISH)


MAKERS: Mapping[str, Callable[..., Tool[..., Any]]] = {
    "calculator": calculator_tool,
    "bash_executor": bash_tool,
    "python_executor": python_tool,
    "file_editor": file_editor_tool,
    "search": search_tool,
    "finish": finish_tool,
}
"""The function that makes each tool. A function with a parameter `sandbox` needs one."""


def needs_sandbox(name: str) -> bool:
    """Return whether a tool acts on a sandbox."""
    return "sandbox" in inspect.signature(MAKERS[name]).parameters


def make_tool(name: str, sandbox: Sandbox | None = None, **options: Any) -> Tool[..., Any]:
    """Return a tool by name.

    Args:
        name: calculator, bash_executor, python_executor, file_editor, search or finish.
        sandbox: The sandbox in which the tool acts, for tools that need one.
        **options: The options of the function that makes the tool.

    Raises:
        ValueError: There is no such tool or option.
    """
    if name not in MAKERS:
        raise ValueError(f"there is no tool {name!r}; the tools are {', '.join(MAKERS)}")
    maker = MAKERS[name]
    known = [each for each in inspect.signature(maker).parameters if each != "sandbox"]
    for option in options:
        if option not in known:
            raise ValueError(f"{option}: the tool {name} has no such option; it has {', '.join(known) or 'none'}")
    return maker(sandbox, **options) if needs_sandbox(name) else maker(**options)
