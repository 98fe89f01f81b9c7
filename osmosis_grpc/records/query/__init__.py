"""SQL over the rollouts of a state folder: the views, and the DuckDB database that contains them."""

from osmosis_grpc.records.query.database import Interrupted, QueryDatabase, QueryError
from osmosis_grpc.records.query.views import VIEWS, VIEWS_VERSION

__all__ = ["VIEWS", "VIEWS_VERSION", "Interrupted", "QueryDatabase", "QueryError"]
