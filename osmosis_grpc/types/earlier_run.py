"""The origin of an outcome that an earlier run of the trainer requested."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """Means that a rollout had ended before this run of the trainer requested it: nothing ran for this run."""

    end_time: float
    """When the rollout ended: Unix seconds, by the server's clock."""
    process_uuid: str = ""
    """The server process in which it ended."""
    same_process: bool = False
    """Whether that process also sends this answer."""
    agent_loop: str = ""
    agent_version: str = ""
    """The version of the agent loop that ran it; empty if it is unknown."""
    current_agent_version: str = ""
    """The version of the agent loop that the server hosts now; empty if it is unknown."""
    changes: tuple[str, ...] = ()
    """Names of the files and packages that differ between the two versions, if the server knows them."""

    @property
    def changed(self) -> bool:
        """Whether the agent's source has changed since; False if a version is unknown."""
        return "" not in (versions := (self.agent_version, self.current_agent_version)) and len(set(versions)) > 1

    def describe_change(self) -> str:
        """Returns how the agent has changed since, as a clause of a warning; empty if it has not."""
        if not self.changed:
            return ""
        files = f"; changed: {', '.join(self.changes)}" if self.changes else ""
        return (
            f"the source of agent loop {self.agent_loop} has changed since "
            f"({self.agent_version} then, {self.current_agent_version} now{files})"
        )


@dataclass(frozen=True, slots=True)
class EndedBy:
    """The server process that ended a rollout, and the run of the trainer that it worked for."""

    process_uuid: str = ""
    trainer_run: str = ""
    """A digest of the run's name; empty if the run has no name."""
