"""The result and the errors of the Osmosis SDK's rubrics, for graders that ask a judge of their own."""

from dataclasses import dataclass


@dataclass
class RubricResult:
    """What a judge said."""

    score: float
    explanation: str


class MissingAPIKeyError(RuntimeError):
    """The judge's provider needs a key."""


class ProviderRequestError(RuntimeError):
    """The judge's provider refused a request.

    Args:
        provider: The provider.
        model: The model that was asked.
        detail: Why.
    """

    def __init__(self, provider: str, model: str, detail: str) -> None:
        self.provider, self.model = provider, model
        self.detail = detail.strip() or "the provider gave no reason"
        super().__init__(f"{provider} refused a request for {model}: {self.detail}")


class ModelNotFoundError(ProviderRequestError):
    """The judge's provider has no such model."""
