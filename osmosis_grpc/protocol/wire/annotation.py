"""annotation.proto: annotations of rollouts."""

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import annotation_pb2 as pb
from osmosis_grpc.protocol.types.annotation import Annotation, SegmentAnnotation
from osmosis_grpc.protocol.types.arrays import np
from osmosis_grpc.protocol.wire.field_conversion import Codec, Converter

_VALUES = Codec(lambda values: values.tolist(), lambda values, path: np.array(values, dtype="<f4"))

SEGMENT_ANNOTATION = Converter(
    SegmentAnnotation, pb.SegmentAnnotation, logprobs=_VALUES, entropies=_VALUES, advantages=_VALUES
)
ANNOTATION = Converter(Annotation, pb.Annotation)


def annotation_from_wire(message: pb.Annotation, path: str = "annotation") -> Annotation:
    """Return a checked annotation without its time. Raises InvalidArgument."""
    annotation = ANNOTATION.from_wire(message, f"{path}.")
    annotation.check(path)
    return annotation


def annotate_request(rollout_id: str, attempt: int, annotation: Annotation) -> pb.AnnotateRequest:
    """Return the request that stores an annotation. Raises InvalidArgument naming a bad field."""
    annotation.check()
    return pb.AnnotateRequest(rollout_id=rollout_id, attempt=attempt, annotation=ANNOTATION.to_wire(annotation))
