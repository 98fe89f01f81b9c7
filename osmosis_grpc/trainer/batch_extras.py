"""The extras of a padded batch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Segment, Tensor


def pad_extra(
    name: str, segments: Sequence[Segment], columns: Sequence[slice], width: int, rows: Sequence[str]
) -> NDArray[Any]:
    """Returns an extra of each segment, shape (n, w, ...), with zeros where there is no value.

    `columns` are the columns of each segment's tokens, and `rows` name the segments in errors. Raises InvalidArgument
    for a segment without the extra, for a ragged extra, and for segments with different types or shapes.
    """
    padded: NDArray[Any] | None = None
    for number, segment in enumerate(segments):
        try:
            extra = segment.aligned_extra(name)
        except InvalidArgument as error:
            raise InvalidArgument("extras", f"{rows[number]}: {error}") from None
        if not isinstance(extra, Tensor):
            raise InvalidArgument("extras", f"{name} is ragged; use segment.aligned_extra({name!r})")
        values = extra.numpy()
        if padded is None:
            padded = np.zeros((len(segments), width, *values.shape[1:]), dtype=values.dtype)
        if (padded.dtype, padded.shape[2:]) != (values.dtype, values.shape[1:]):
            kinds = f"{values.dtype}{list(values.shape[1:])}, others {padded.dtype}{list(padded.shape[2:])}"
            raise InvalidArgument("extras", f"{rows[number]}: {name} has {kinds} for each token")
        place = columns[number]
        padded[number, place] = values[: place.stop - place.start]
    return np.zeros((0, width), dtype=np.float32) if padded is None else padded
