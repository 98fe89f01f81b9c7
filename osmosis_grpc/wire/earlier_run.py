"""rollout.proto's EarlierRun."""

from osmosis_grpc._gen.osmosis.rollout.v1 import rollout_pb2 as pb
from osmosis_grpc.types.earlier_run import EarlierRun
from osmosis_grpc.wire import times

MAX_CHANGES = 20
"""The most names of changed files and packages in a message."""


def earlier_to_wire(earlier: EarlierRun | None) -> pb.EarlierRun | None:
    """Returns the earlier run that a completion comes from, as a message; None for a completion of this run."""
    if earlier is None:
        return None
    return pb.EarlierRun(
        end_time=times.timestamp(earlier.end_time),
        process_uuid=earlier.process_uuid,
        same_process=earlier.same_process,
        agent_loop=earlier.agent_loop,
        agent_version=earlier.agent_version,
        current_agent_version=earlier.current_agent_version,
        changes=earlier.changes[:MAX_CHANGES],
    )


def earlier_from_wire(message: pb.Completion | pb.InitResponse) -> EarlierRun | None:
    """Returns the earlier run in the field `from_journal`; None if the field is unset."""
    if not message.HasField("from_journal"):
        return None
    earlier = message.from_journal
    return EarlierRun(
        times.unix(earlier.end_time),
        earlier.process_uuid,
        earlier.same_process,
        earlier.agent_loop,
        earlier.agent_version,
        earlier.current_agent_version,
        tuple(earlier.changes[:MAX_CHANGES]),
    )
