"""The old names of osmosis_grpc.testing.raw, for tests/trainer."""

from osmosis_grpc.testing.raw import RawStream, RawTrainer, field_of
from osmosis_grpc.testing.raw import detail_of as details
from osmosis_grpc.testing.raw.connections import OPTIONS
from osmosis_grpc.testing.raw.stream import TIMEOUT as SOON
from tests.server.attached import Talk

__all__ = ["OPTIONS", "SOON", "RawStream", "RawTrainer", "Talk", "details", "field_of"]
