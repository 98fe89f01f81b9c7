"""The harness, under the name by which verifiers imports it."""

from osmosis_grpc.integrations.verifiers import OsmosisHarness

__all__ = ["OsmosisHarness"]
