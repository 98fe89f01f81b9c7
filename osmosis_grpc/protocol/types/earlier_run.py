"""The origin of an outcome that an earlier run of the trainer requested."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """The earlier end of a rollout that this run of the trainer requested again. It did not run again."""

    end_time: float
    """The time of the rollout's end, in Unix seconds by the server's clock."""
    process_id: str = ""
    """The server process in which the rollout ended."""
    same_process: bool = False
    """Whether the server process `process_id` also sends this answer."""
    agent_loop: str = ""
    agent_version: str = ""
    """The version of the agent loop that ran the rollout; empty if it is unknown."""
    current_agent_version: str = ""
    """The version of the agent loop that the server hosts now; empty if it is unknown."""
    changes: tuple[str, ...] = ()
    """The names of the files and packages that differ between the two versions, if the server knows them."""

    @property
    def changed(self) -> bool:
        """Whether the agent's source has changed since the rollout ran; False if a version is unknown."""
        return "" not in (versions := (self.agent_version, self.current_agent_version)) and len(set(versions)) > 1

    def describe_change(self) -> str:
        """Return how the agent has changed, as a clause for a warning; an empty string if `changed` is False."""
        if not self.changed:
            return ""
        files = f"; changed: {', '.join(self.changes)}" if self.changes else ""
        return (
            f"the source of agent loop {self.agent_loop} has changed since "
            f"({self.agent_version} then, {self.current_agent_version} now{files})"
        )


@dataclass(frozen=True, slots=True)
class EndedBy:
    """The server process that ended a rollout, and the trainer's run that requested the rollout."""

    process_id: str = ""
    trainer_run: str = ""
    """A digest of the run's name; empty if the run has no name."""
