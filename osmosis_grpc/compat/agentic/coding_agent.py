"""The coding agent: explores a repository in a sandbox, edits it, and runs its tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.compat.agentic.built_in_agent import BuiltInAgent
from osmosis_grpc.compat.agentic.coding_episode import CodingEpisode
from osmosis_grpc.compat.agentic.config import check
from osmosis_grpc.compat.agentic.episode import Episode
from osmosis_grpc.compat.agentic.reply_formats import FORMATS
from osmosis_grpc.compat.agentic.snapshots import Snapshots
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.tools.sandbox import Sandbox

PROMPT = """\
You work on a repository in the current folder. First explore it: view and search its files. Then edit the files, and
run the tests with bash_executor. When the tests pass, call finish with a short description of the change."""
TOOLS: Mapping[str, Mapping[str, Any]] = {"bash_executor": {}, "file_editor": {}, "search": {}, "finish": {}}


class CodingAgent(BuiltInAgent):
    """Needs a model that calls tools. Each rollout has a sandbox of its own, with the files of a repository.

    `repository` is a folder, which stays as it is. `test_command` runs at the end of a rollout: the reward is 1.0 if it
    succeeds, otherwise 0.0. With `snapshots` the sandbox is saved at each turn, so that a rollout can be forked.
    `system_prompt` replaces the agent's own prompt.
    """

    agent_type = "coding"
    reply_format = FORMATS["native"]

    def __init__(
        self,
        max_steps: int = 10,
        max_tokens_per_step: int = 16000,
        temperature: float = 0.7,
        tools_config: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        repository: str | None = None,
        test_command: str = "",
        snapshots: bool = False,
        max_parse_errors: int = 3,
        system_prompt: str = PROMPT,
    ) -> None:
        super().__init__(
            max_steps, max_tokens_per_step, temperature, TOOLS if tools_config is None else tools_config,
            max_parallel_calls=1, max_parse_errors=max_parse_errors, system_prompt=system_prompt,
        )  # fmt: skip
        if not self.toolbox.needs_sandbox:
            raise InvalidArgument("tools_config", "names no tool that works in a sandbox, such as file_editor")
        check("snapshots", bool, snapshots)
        if repository is not None and not Path(repository).is_dir():
            raise InvalidArgument("repository", f"{repository!r} is not a folder")
        self.repository = None if repository is None else Path(repository)
        """The folder whose files each rollout gets."""
        self.test_command = test_command
        """Runs at the end of a rollout. The reward is 1.0 if it succeeds, otherwise 0.0. Without one, no reward."""
        self.replayable = snapshots
        """Whether the sandbox is saved at each turn, so that a rollout can be forked and continues after a crash."""

    def episode(self, context: RolloutContext, sandbox: Sandbox | None) -> Episode:
        """Return the episode with the repository and the tests."""
        assert sandbox is not None
        snapshots = Snapshots(context, sandbox) if self.replayable else None
        return CodingEpisode(context, sandbox, self.repository, self.test_command, snapshots)
