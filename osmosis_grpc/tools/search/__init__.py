"""The tool `search`: text in files, names of files, names of folders."""

from osmosis_grpc.tools.search.search_tool import search_tool

__all__ = ["search_tool"]
