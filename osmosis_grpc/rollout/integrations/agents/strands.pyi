from osmosis_grpc.integrations.strands import OsmosisRolloutModel as OsmosisRolloutModel
from osmosis_grpc.integrations.strands import OsmosisStrandsAgent as OsmosisStrandsAgent

__all__ = ["OsmosisRolloutModel", "OsmosisStrandsAgent"]
