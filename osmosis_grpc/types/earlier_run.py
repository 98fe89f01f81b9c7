"""Where an outcome comes from that an earlier run of the trainer asked for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """Says that a rollout had ended before this run of the trainer asked for it: nothing ran for it."""

    end_time: float
    """When the rollout ended: Unix seconds, by the server's clock."""
    process_uuid: str = ""
    """The server process in which it ended."""
    same_process: bool = False
    """Whether that process is the one that answers now."""
    agent_loop: str = ""
    agent_version: str = ""
    """The version of the agent loop that ran it; empty where it is not known."""
    current_agent_version: str = ""
    """The version of the agent loop that the server hosts now; empty where it is not known."""
    changes: tuple[str, ...] = ()
    """What differs between the two versions: names of files and packages, where the server knows them."""

    @property
    def changed(self) -> bool:
        """Whether the agent's source has changed since; false where a version is not known."""
        return "" not in (versions := (self.agent_version, self.current_agent_version)) and len(set(versions)) > 1

    def describe_change(self) -> str:
        """Returns how the agent has changed since, as a clause of a warning; empty where it has not."""
        if not self.changed:
            return ""
        files = f"; changed: {', '.join(self.changes)}" if self.changes else ""
        return (
            f"the source of agent loop {self.agent_loop} has changed since "
            f"({self.agent_version} then, {self.current_agent_version} now{files})"
        )


@dataclass(frozen=True, slots=True)
class EndedBy:
    """Who ended a rollout, and for whom."""

    process_uuid: str = ""
    """The server process."""
    trainer_run: str = ""
    """Stands for the run of the trainer; empty where that has no name."""
