"""The screen: wrapping, widths, and texts that nobody trusts."""

from hypothesis import given
from hypothesis import strategies as st

from osmosis_grpc.cli.screen import Line, Screen, columns, pieces, wrapped
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.serve.json_output import Records


class Printed(Records):
    """Keeps the lines that are printed."""

    def __init__(self):
        super().__init__(None)
        self.lines = []

    def say(self, text, colour=""):
        self.lines.append(f"\x1b[{colour}m{text}\x1b[0m" if colour else text)


def test_a_line_has_the_colour_of_its_kind_and_escaped_texts():
    printed = Printed()
    screen = Screen(printed, 20, colours=True)
    screen.say(Line.of("red\x1b[0m\x9b\r\n\u202e", "error"))
    screen.say(Line.of("plain"))
    screen.say("a\tb")
    assert printed.lines == ["\x1b[31m" + r"red\x1b[0m\x9b\r\n\u202e" + "\x1b[0m", "plain", "a   b"]


def test_a_fitted_text_is_one_line():
    screen = Screen(Records(None), 20, colours=False)
    assert screen.fitted("short\n") == r"short\n"
    assert screen.fitted("x" * 21) == "x" * 16 + " ..."
    assert columns(screen.fitted("漢字" * 20)) <= 20


def test_breaks_are_at_blanks_and_later_pieces_are_indented():
    assert list(wrapped("one two three four", 9)) == ["one two", "  three", "  four"]
    assert list(wrapped("abcdefghijklmnop", 6)) == ["abcdef", "  ghij", "  klmn", "  op"]
    assert list(wrapped("    indented code", 80)) == ["    indented code"]
    assert list(wrapped("", 10)) == [""]
    assert list(wrapped("漢字漢字", 4)) == ["漢字", "  漢", "  字"]


@given(st.text(max_size=200), st.integers(8, 40))
def test_no_piece_is_wider_and_no_character_is_lost(text, width):
    pieces = list(wrapped(text, width))
    assert all(columns(piece) <= width for piece in pieces)
    assert all(piece.isprintable() for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(printable(text.expandtabs(4)).split())


def test_pieces_of_lines_keep_their_indent():
    assert list(pieces("  one two three\nfour", 10)) == ["  one two", "    three", "four"]


def test_a_megabyte_in_one_line_is_wrapped():
    assert sum(map(len, wrapped("é" * 1_000_000, 72, more=0))) == 1_000_000
