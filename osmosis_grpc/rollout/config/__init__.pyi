from osmosis_grpc.settings.settings import RolloutClientSettings as RolloutClientSettings
from osmosis_grpc.settings.settings import RolloutServerSettings as RolloutServerSettings
from osmosis_grpc.settings.settings import RolloutSettings as RolloutSettings
from osmosis_grpc.settings.settings import configure as configure
from osmosis_grpc.settings.settings import get_settings as get_settings
from osmosis_grpc.settings.settings import reset_settings as reset_settings
