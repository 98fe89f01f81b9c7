"""The API for agent authors, under the import paths of the Osmosis SDK.

Each name is imported when it is first used, so importing this package is cheap, and an extra is needed only by those
names that use it. `__init__.pyi` is the one list of the names, for this module and for type checkers.
"""

from osmosis_grpc.rollout._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
