"""Makes the tool `finish`, with which a model ends a rollout."""

from typing import Any, Literal

from osmosis_grpc.agent.tool_decorator import Tool

NAME = "finish"


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

    return Tool(finish, name=NAME)
