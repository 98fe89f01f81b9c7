"""Parsing of Python."""

import ast
import gc

import pytest

from osmosis_grpc.agent.syntax_tree import parse, parse_expression


class ParsesAtItsEnd:
    """Garbage of a cycle. Its finalizer parses, wherever the collector runs. Only the first few do."""

    left = 3

    def __init__(self):
        self.me = self

    def __del__(self):
        if ParsesAtItsEnd.left:
            ParsesAtItsEnd.left -= 1
            ast.parse("1")


def test_a_finalizer_that_parses_does_not_break_a_parse():
    source = b"x = [" + b"(1,)," * 3000 + b"]\n"
    thresholds = gc.get_threshold()
    gc.set_threshold(50)
    try:
        for _ in range(20):
            ParsesAtItsEnd()
        tree = parse(source)
    finally:
        gc.set_threshold(*thresholds)
    assert ast.dump(tree) == ast.dump(ast.parse(source))


def test_wrong_source_is_a_syntax_error():
    with pytest.raises(SyntaxError):
        parse_expression("1 +")
    assert ast.unparse(parse_expression("1 + 2")) == "1 + 2"
