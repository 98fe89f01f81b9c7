"""The kinds of cases against a trainer."""

from collections.abc import Mapping

from osmosis_grpc.testing.conformance.cases import Kind

KINDS: Mapping[str, Kind] = {}
