"""Agents and a process for benchmarks.killed_server: each rollout runs a program in a sandbox, or ends at once.

python -m benchmarks.sandboxed FILE ROLLOUTS runs AgenticRollout in this process, and saves its trajectories.

The variable SLEEP has the seconds for which a program sleeps; without it, programs end at once.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Any

from osmosis_grpc.agentic import AgenticRollout, AgenticRolloutConfig, ReActAgent, agent_runnable
from osmosis_grpc.tools.sandbox import LocalSandbox

PROGRAM, SHORT = "program", "short"
"""The questions of the two kinds of rollouts."""
DONE = "Final Answer: done"
TOOLS: dict[str, dict[str, Any]] = {"bash_executor": {"timeout": 3600}}
_COMMAND = '[ -z "$SLEEP" ] || { setsid sleep $SLEEP & sleep $SLEEP; }; echo the program has ended'


def sandbox() -> LocalSandbox:
    """Return the sandbox of a rollout."""
    return LocalSandbox(environment={"SLEEP": os.environ.get("SLEEP", "")})


async def llm(messages: Sequence[dict[str, Any]], **params: Any) -> str:
    """Run the program first, if the question says so, and then answer."""
    asked = [message["content"] for message in messages if message["role"] == "user"]
    return DONE if len(asked) > 1 or asked[0] == SHORT else f"Action: bash_executor(command={_COMMAND!r})"


def _agent() -> ReActAgent:
    agent = ReActAgent(tools_config=TOOLS)
    agent.make_sandbox = sandbox
    return agent


agent_loop = agent_runnable(_agent(), "sandboxed")


async def main(path: str, rollouts: int) -> None:
    """Run rollouts with a program, and beside them short ones without end. Print the id of each that was saved."""
    config = AgenticRolloutConfig(
        tools_config=TOOLS, concurrent_requests=rollouts, save_trajectories=True, trajectory_save_path=path
    )
    made = AgenticRollout(config, llm, sandbox=sandbox)

    async def short() -> None:
        number = 0
        while True:
            number += 1
            print((await made.run(SHORT, f"short-{number}")).request_id, flush=True)

    await asyncio.gather(made.run_batch([PROGRAM] * rollouts), short())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
