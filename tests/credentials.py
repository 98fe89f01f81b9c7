"""What callers of a CallbackTrainer show who call it by hand."""

from tests.callback_trainer import CallbackTrainer


def shown(trainer: CallbackTrainer) -> tuple[tuple[str, str], ...]:
    """The metadata of a callback to a trainer."""
    return (("authorization", f"Bearer {trainer.callback().credential}"),)
