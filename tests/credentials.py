"""What callers of a TrainerServer show who call it by hand."""

from osmosis_grpc.trainer import TrainerServer


def shown(trainer: TrainerServer) -> tuple[tuple[str, str], ...]:
    """The metadata of a callback to a trainer."""
    return (("authorization", f"Bearer {trainer.callback().credential}"),)
