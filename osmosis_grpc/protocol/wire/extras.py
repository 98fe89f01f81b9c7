"""The extras of tokens.proto: tensors and ragged tensors."""

from collections.abc import Mapping

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import tokens_pb2 as pb
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.arrays import np
from osmosis_grpc.protocol.types.extras import MAX_EXTRAS, MAX_NAME, Extra, Extras
from osmosis_grpc.protocol.types.jsontext import NOTHING
from osmosis_grpc.protocol.types.tensors import MAX_DIMENSIONS, TENSOR_DTYPES, RaggedTensor, Tensor

_TENSOR_TYPES = {name: pb.TensorType.Value(f"TENSOR_TYPE_{name.upper()}") for name in TENSOR_DTYPES}
_TENSOR_NAMES = {number: name for name, number in _TENSOR_TYPES.items()}


def extras_to_wire(extras: Extras) -> dict[str, pb.Extra]:
    """Return extras as messages."""
    return {name: _extra_to_wire(extra) for name, extra in extras.items()}


def extras_from_wire(extras: Mapping[str, pb.Extra], rows: int, field: str) -> Extras:
    """Return extras, which check_extras() checks further. Raises InvalidArgument with a path below `field`."""
    if not extras:
        return NOTHING
    if len(extras) > MAX_EXTRAS:
        raise InvalidArgument(field, f"has {len(extras)} names, more than {MAX_EXTRAS}")
    return {name: _extra_from_wire(extra, rows, f"{field}[{name[:MAX_NAME]}]") for name, extra in extras.items()}


def _extra_to_wire(extra: Extra) -> pb.Extra:
    if isinstance(extra, RaggedTensor):
        return pb.Extra(ragged=pb.RaggedTensor(values=_tensor_to_wire(extra.values), offsets=extra.offsets.tolist()))
    return pb.Extra(tensor=_tensor_to_wire(extra))


def _tensor_to_wire(tensor: Tensor) -> pb.Tensor:
    return pb.Tensor(type=_TENSOR_TYPES[tensor.dtype], shape=tensor.shape, data=tensor.data)


def _extra_from_wire(extra: pb.Extra, rows: int, field: str) -> Extra:
    kind = extra.WhichOneof("values")
    if kind == "tensor":
        return _tensor_from_wire(extra.tensor, f"{field}.tensor")
    if kind is None:
        raise InvalidArgument(field, "has neither a tensor nor a ragged tensor")
    count = len(extra.ragged.offsets)
    if count != rows + 1:  # checked before the numbers are copied
        raise InvalidArgument(f"{field}.ragged.offsets", f"{count} offsets for {rows} tokens, not one more")
    offsets = np.fromiter(extra.ragged.offsets, np.uint32, count)
    offsets.flags.writeable = False
    return RaggedTensor(values=_tensor_from_wire(extra.ragged.values, f"{field}.ragged.values"), offsets=offsets)


def _tensor_from_wire(tensor: pb.Tensor, field: str) -> Tensor:
    if tensor.type not in _TENSOR_NAMES:
        raise InvalidArgument(f"{field}.type", f"{tensor.type} is not a tensor type")
    if len(tensor.shape) > MAX_DIMENSIONS:  # checked before the numbers are copied
        raise InvalidArgument(f"{field}.shape", f"has {len(tensor.shape)} dimensions, more than {MAX_DIMENSIONS}")
    return Tensor(dtype=_TENSOR_NAMES[tensor.type], shape=tuple(tensor.shape), data=tensor.data)
