"""The features of this implementation. services.proto says what each feature means."""

from collections.abc import Iterable

ABANDON_CHAT = "abandon_chat"
ANNOTATE = "annotate"
BLOBS = "blobs"
FORK = "fork"
GOODBYE = "goodbye"
OUTCOME_BY_REFERENCE = "outcome_by_reference"

FEATURES = (ABANDON_CHAT, ANNOTATE, BLOBS, FORK, GOODBYE, OUTCOME_BY_REFERENCE)
"""The features of our servers and trainers, as they list them."""

MAX_FEATURES = 256
"""The most names of features that are kept of a peer."""


def features_from_wire(names: Iterable[str]) -> frozenset[str]:
    """Return the features of a peer. Unknown names are kept, because a later version may use them."""
    return frozenset(list(names)[:MAX_FEATURES])
