"""What tools and agents return becomes JSON: one conversion, exact or refused with the place."""

import dataclasses
import datetime
import decimal
import enum
import fractions
import json
import pathlib
import uuid
from collections import deque

import numpy as np
import pytest
from pydantic import BaseModel, Field

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import jsontext
from osmosis_grpc.protocol.types.json_values import loggable, number_of, readable, to_json


class Colour(enum.Enum):
    RED = "red"


class Point(BaseModel):
    x: int = 1
    tags: set[str] = {"b", "a", "c"}
    price: decimal.Decimal = Field(decimal.Decimal("19.99"), alias="Price")


@dataclasses.dataclass
class Box:
    corner: object
    sizes: np.ndarray


class Celsius:
    """An object with a text of its own."""

    def __str__(self):
        return "21 °C"


VALUES = [
    (Point(), {"x": 1, "tags": ["a", "b", "c"], "Price": 19.99}),
    (Box((1, 2), np.zeros((1, 2))), {"corner": [1, 2], "sizes": [[0.0, 0.0]]}),
    (np.arange(4), [0, 1, 2, 3]),
    (np.int64(3), 3),
    (np.bool_(1), True),
    (np.longdouble(1.5), 1.5),
    (np.str_("a"), "a"),
    (np.array([np.arange(2), None], dtype=object), [[0, 1], None]),
    (np.array(["2024-01-02"], dtype="datetime64[ns]"), ["2024-01-02T00:00:00.000000000"]),
    (decimal.Decimal("19.99"), 19.99),
    (decimal.Decimal("5.00"), 5),
    (decimal.Decimal("0.12345678901234567890123"), "0.12345678901234567890123"),
    (fractions.Fraction(1, 4), 0.25),
    (Colour.RED, "red"),
    (datetime.datetime(2024, 1, 2, 3, 4), "2024-01-02T03:04:00"),
    (datetime.date(2024, 1, 2), "2024-01-02"),
    (datetime.time(3, 4), "03:04:00"),
    (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    (pathlib.PurePosixPath("/a/b"), "/a/b"),
    ("grün".encode(), "grün"),
    ({3, 1, 2}, [1, 2, 3]),
    (frozenset({"b", "a"}), ["a", "b"]),
    (deque([1]), [1]),
    (range(2), [0, 1]),
    ({1: 2}.keys(), [1]),
]


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=lambda value: f"{type(value).__name__}")
@pytest.mark.parametrize("convert", [to_json, readable])
def test_a_value_becomes_what_it_means(convert, value, expected):
    made = convert({"a": [value]}, "x")
    assert made == {"a": [expected]}
    assert json.loads(jsontext.render(made)) == made


def test_a_key_becomes_the_text_that_json_writes():
    keys = {2: 1, None: 2, False: 3, Colour.RED: 4, np.int64(7): 5, datetime.date(2024, 1, 2): 6, 1.5: 7}
    assert list(to_json(keys, "x")) == ["2", "null", "false", "red", "7", "2024-01-02", "1.5"]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (float("nan"), "x"),
        ({"loss": [0.0, 1.0, 2.0, float("nan")]}, "x.loss[3]"),
        ({"loss": np.array([1.0, np.inf])}, "x.loss[1]"),
        ({"point": Box(-float("inf"), np.zeros(0))}, "x.point.corner"),
        (decimal.Decimal("NaN"), "x"),
        ([{1: 1, "1": 2}], "x[0]"),
        ({("a",): 1}, "x"),
        ([10**5000], "x[0]"),
    ],
)
@pytest.mark.parametrize("convert", [to_json, readable])
def test_what_is_no_json_is_refused_with_its_place(convert, value, place):
    with pytest.raises(InvalidArgument) as refusal:
        convert(value, "x")
    assert refusal.value.violations[0][0] == place


def test_a_value_that_contains_itself_is_refused():
    value = []
    value.append(value)
    with pytest.raises(InvalidArgument):
        to_json(value, "x")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"caf\xe9", "caf\ufffd"),
        (pathlib.Path("\udcff.txt"), "\ufffd.txt"),
        ("\ud83d\ude00 \ud83d", "\U0001f600 \ufffd"),
        (Celsius(), "21 °C"),
    ],
)
def test_a_model_reads_the_text_that_data_does_not_have(value, text):
    assert readable({"a": value}, "x") == {"a": text}
    with pytest.raises(InvalidArgument) as refusal:
        to_json({"a": value}, "x")
    assert refusal.value.violations[0][0] == "x.a"


@pytest.mark.parametrize("value", [object(), (i for i in ())], ids=["object", "generator"])
@pytest.mark.parametrize("convert", [to_json, readable])
def test_an_object_that_says_nothing_is_refused_with_its_type(convert, value):
    with pytest.raises(InvalidArgument) as refusal:
        convert([value], "x")
    assert refusal.value.violations[0][0] == "x[0]"
    assert type(value).__name__ in str(refusal.value)


class Broken(Box):
    corner = property(lambda self: 1 / 0)

    def __init__(self):
        pass


def test_an_object_whose_code_raises_is_refused():
    with pytest.raises(InvalidArgument) as refusal:
        to_json({"a": Broken()}, "x")
    assert refusal.value.violations[0][0] == "x.a"


def test_a_log_has_the_repr_of_an_object_so_secrets_stay_out():
    @dataclasses.dataclass
    class Login:
        user: str
        key: str = dataclasses.field(repr=False)

    assert "sk-1" not in str(loggable({"login": Login("ada", "sk-1"), "loss": float("nan")}))


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (True, 1.0),
        (False, 0.0),
        (np.True_, 1.0),
        (np.float32(0.5), 0.5),
        (np.longdouble(2), 2.0),
        (np.array(1.5), 1.5),
        (decimal.Decimal("0.5"), 0.5),
        (fractions.Fraction(1, 4), 0.25),
        (float("nan"), None),
        (np.float64("inf"), None),
        (decimal.Decimal("sNaN"), None),
        (decimal.Decimal("1e999"), None),
        (10**400, None),
        ([1.0], None),
        (np.array([1.0]), None),
        (np.ma.masked, None),
        ("1", None),
        (np.str_("1"), None),
        (1j, None),
        (None, None),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_a_number_is_a_finite_float(value, number):
    assert number_of(value) == number
    assert number is None or type(number_of(value)) is float


@pytest.mark.adapters
def test_a_tensor_is_its_numbers():
    torch = pytest.importorskip("torch")
    tensors = [torch.tensor([[1, 2]]), torch.tensor(1.5, requires_grad=True), torch.tensor(2.0, dtype=torch.bfloat16)]
    for convert in (to_json, readable):
        assert convert(tensors, "x") == [[[1, 2]], 1.5, 2.0]
    assert [number_of(torch.tensor(value)) for value in (2, True, float("nan"))] == [2.0, 1.0, None]
