"""The filters of `list` in the address of a page."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from fastapi import Request

from osmosis_grpc.records.reading.list_filter import ListOptions, options_of, pairs_of


def options_in(request: Request, limit: int, own: Collection[str] = ()) -> ListOptions:
    """Return the filters of an address, with this limit if it names none. `own` are no filters. Raises FilterError."""
    options = options_of(pair for pair in request.query_params.multi_items() if pair[0] not in own)
    return options if "limit" in request.query_params else replace(options, limit=limit)


def filter_values(options: ListOptions, limit: int) -> dict[str, Any]:
    """Return the filters for a template, and the query that has them. The usual limit is left out."""
    filters = [pair for pair in pairs_of(options) if pair != ("limit", f"{limit}")]
    return {"filters": filters, "query": urlencode(filters)}
