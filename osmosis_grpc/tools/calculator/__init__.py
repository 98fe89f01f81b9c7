"""The tool `calculator`: expressions and single operations, with exact integers and bounded work."""

from osmosis_grpc.tools.calculator.calculator_tool import calculator_tool

__all__ = ["calculator_tool"]
