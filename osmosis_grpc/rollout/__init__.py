"""The API for agent authors, under the import paths of the Osmosis SDK.

Each name is imported when it is first used. So the import of this package is cheap, and an extra is needed only by the
names that use the extra. `__init__.pyi` lists the names, for this module and for type checkers.
"""

from osmosis_grpc.compat.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
