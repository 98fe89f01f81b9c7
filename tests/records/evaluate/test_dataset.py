"""Datasets: formats, shapes, the metadata, and errors with their place."""

import json
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.records.evaluate import Dataset, DatasetError
from osmosis_grpc.records.evaluate.columns import parse_map
from osmosis_grpc.records.evaluate.formats import CHUNK
from tests.processes import run

SDK = {"user_prompt": "What is 2 + 3?", "system_prompt": "Calculate.", "ground_truth": "5", "level": "easy"}
MESSAGES = [{"role": "system", "content": "Calculate."}, {"role": "user", "content": "What is 2 + 3?"}]
VERL = {
    "data_source": "gsm8k",
    "prompt": MESSAGES,
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "5"},
    "extra_info": {"index": 7},
}


def written(folder, name, rows):
    path = folder / name
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1))
    elif path.suffix == ".csv":
        cells = [list(rows[0]), *(row.values() for row in rows)]
        path.write_text("\n".join(",".join(f'"{cell}"' for cell in line) for line in cells))
    else:
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


def only(path, **options):
    (row,) = Dataset(path, **options).rows()
    return row


@pytest.mark.parametrize("name", ["d.json", "d.jsonl", "d.csv", "d.parquet"])
def test_the_columns_of_the_sdk_are_read_from_every_format(tmp_path, name):
    row = only(written(tmp_path, name, [SDK]))
    assert row.messages == MESSAGES
    assert row.label == "5"
    assert row.metadata == {"row_index": 0, "ground_truth": "5", "level": "easy"}


@pytest.mark.parametrize("name", ["d.json", "d.jsonl", "d.parquet"])
def test_rows_of_verl_are_detected(tmp_path, name):
    row = only(written(tmp_path, name, [VERL]))
    assert row.messages == MESSAGES
    assert row.label == "5"
    assert row.metadata["reward_model"] == {"style": "rule", "ground_truth": "5"}
    assert row.metadata["extra_info"] == {"index": 7}
    assert row.metadata["data_source"] == "gsm8k"
    assert "prompt" not in row.metadata


@pytest.mark.parametrize("column", ["messages", "prompt", "Messages"])
def test_lists_of_messages_are_detected(tmp_path, column):
    row = only(written(tmp_path, "d.jsonl", [{column: MESSAGES, "label": "5"}]))
    assert (row.messages, row.label) == (MESSAGES, "5")


def test_names_of_columns_are_case_insensitive(tmp_path):
    row = only(written(tmp_path, "d.jsonl", [{"User_Prompt": "Hi", "SYSTEM_PROMPT": "Be kind.", "Ground_Truth": "x"}]))
    assert [message["content"] for message in row.messages] == ["Be kind.", "Hi"]
    assert row.metadata == {"row_index": 0, "ground_truth": "x"}


def test_other_columns_are_mapped(tmp_path):
    path = written(tmp_path, "d.jsonl", [{"question": "Hi", "answer": {"final": 7}, "id": 3}])
    columns = parse_map(("question=user_prompt", "answer.final=ground_truth"))
    row = only(path, columns=columns)
    assert row.messages == [{"role": "user", "content": "Hi"}]
    assert row.label == "7"
    assert row.metadata == {"row_index": 0, "ground_truth": "7", "answer": {"final": 7}, "id": 3}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("question", "'question' is not COLUMN=FIELD, for example question=user_prompt"),
        ("a=b", "'b' is not a field; the fields are: user_prompt, system_prompt, messages, ground_truth, metadata"),
    ],
)
def test_a_wrong_map_says_what_a_right_one_is(text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_map((text,))


def test_the_column_metadata_is_merged_into_the_metadata(tmp_path):
    row = only(written(tmp_path, "d.jsonl", [{"user_prompt": "Hi", "metadata": {"a": 1}}]))
    assert row.metadata == {"row_index": 0, "a": 1}
    (tmp_path / "d.csv").write_text('user_prompt,metadata\nHi,"{""a"": 1}"\n')
    assert only(tmp_path / "d.csv").metadata == {"row_index": 0, "a": 1}


def test_values_that_json_lacks_are_converted(tmp_path):
    import datetime
    from decimal import Decimal

    extra = {"day": datetime.date(2026, 1, 2), "price": Decimal("1.50"), "score": float("nan"), "image": b"\x00"}
    row = only(written(tmp_path, "d.parquet", [{"user_prompt": "Hi", **extra}]))
    assert row.metadata == {"row_index": 0, "day": "2026-01-02", "price": "1.50", "score": None}


def test_nulls_that_parquet_puts_into_messages_are_dropped(tmp_path):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert only(written(tmp_path, "d.parquet", [{"messages": messages}])).messages == messages


def test_offset_and_limit_choose_rows(tmp_path):
    dataset = Dataset(written(tmp_path, "d.jsonl", [{"user_prompt": str(number)} for number in range(10)]))
    assert [row.number for row in dataset.rows(3, 2)] == [3, 4]
    assert (dataset.check(), dataset.check(8, 5)) == (10, 2)
    with pytest.raises(DatasetError, match=r"d.jsonl: has no row 10"):
        dataset.check(10)
    with pytest.raises(DatasetError, match=r"d.jsonl: has none of the chosen rows"):
        dataset.check(0, 100, lambda number: number == 99)


def test_a_json_file_may_have_one_object_after_another(tmp_path):
    (tmp_path / "d.json").write_text('{"user_prompt": "a"}\n{"user_prompt": "b"} {"user_prompt": "c"}')
    assert [row.messages[0]["content"] for row in Dataset(tmp_path / "d.json").rows()] == ["a", "b", "c"]


BAD = [
    ("d.jsonl", '{"user_prompt": "a"}\n{"user_prompt" "b"}\n', "d.jsonl:2:16: not JSON: Expecting ':' delimiter"),
    ("d.jsonl", '{"user_prompt": "a", "x": NaN}', "d.jsonl:1: not JSON: NaN is not a JSON number"),
    ("d.jsonl", "[1]\n", "d.jsonl:1: the row is not an object with columns"),
    ("d.jsonl", '\n{"user_prompt": 5}', "d.jsonl:2: user_prompt: is a number, not a text"),
    ("d.jsonl", '{"user_prompt": " "}', "d.jsonl:1: user_prompt: is empty"),
    (
        "d.jsonl",
        '{"user_prompt": "a", "User_Prompt": "b"}',
        "d.jsonl:1: User_Prompt: the row also has user_prompt; keep",
    ),
    ("d.jsonl", '{"messages": []}', "d.jsonl:1: messages: is an empty list"),
    ("d.jsonl", '{"messages": [{"role": "bot"}]}', "d.jsonl:1: messages[0].role: 'bot' is not one of"),
    ("d.jsonl", '{"prompt": [{"role": "user"}, 3]}', "d.jsonl:1: prompt[1]: a message is a dict, not a int"),
    ("d.jsonl", '{"user_prompt": "a", "metadata": 3}', "d.jsonl:1: metadata: is a number, not an object"),
    (
        "d.jsonl",
        '{"question": "a", "answer": "b"}',
        "d.jsonl:1: has no column user_prompt, messages or prompt; it has: question, answer; name one: --map "
        "question=user_prompt",
    ),
    ("d.jsonl", b'{"user_prompt": "\xff"}', "d.jsonl:1:18: not UTF-8; convert the file to UTF-8"),
    ("d.json", '[{"user_prompt": "a"},\n {"user_prompt": b}]', "d.json:2:18: not JSON: Expecting value"),
    (
        "d.json",
        '[{"user_prompt": "a"}\n {"user_prompt": "b"}]',
        "d.json:2:2: a comma or the end of the list is missing",
    ),
    ("d.json", '[{"user_prompt": "a"},\n]', "d.json:2:1: an object is missing after the comma"),
    ("d.json", '[{"user_prompt": "a"}', "d.json:1:22: a comma or the end of the list is missing"),
    ("d.json", '[{"user_prompt": "a"}] x', "d.json:1:24: there is more text after the end of the list"),
    ("d.json", '["a"]', "d.json:1:2: a row is an object in braces; a dataset is a list of objects"),
    ("d.json", '[\n{"user_prompt": 5}]', "d.json:2:1: user_prompt: is a number, not a text"),
    ("d.json", b'[\n{"user_prompt": "\xff"}]', "d.json:2:18: not UTF-8; convert the file to UTF-8"),
    ("d.csv", "user_prompt,level\na,b\nc\n", "d.csv:3: the row has 1 cells, and the header has 2"),
    ("d.csv", "user_prompt;ground_truth\na;b\n", "d.csv:1: the separator is ;, not ,: separate the cells by commas"),
    ("d.csv", "user_prompt\tground_truth\na\tb\n", "d.csv:1: the separator is a tab, not ,"),
    ("d.csv", "user_prompt,user_prompt\na,b\n", "d.csv:1: the header has a column twice: user_prompt"),
    ("d.csv", 'user_prompt\na\n"b"c\n', "d.csv:3: not CSV: ',' expected after '\"'"),
    ("d.csv", 'user_prompt,x\n"a\nb",c\n,d\n', "d.csv:4: user_prompt: is empty"),
    ("d.csv", b"user_prompt\na\n\xff\n", "d.csv:3:1: not UTF-8"),
    ("d.parquet", "PAR", "d.parquet: not a Parquet file: "),
    ("d.txt", "a", "d.txt: not a dataset; the name ends with one of .json, .jsonl, .ndjson, .csv, .parquet"),
    ("d.jsonl", "", "d.jsonl: has no rows"),
    ("d.json", "", "d.json: has no rows"),
    ("d.json", "[]", "d.json: has no rows"),
    ("d.csv", "user_prompt\n", "d.csv: has no rows"),
]


@pytest.mark.parametrize(("name", "content", "said"), BAD)
def test_an_error_names_the_file_the_line_and_the_column(tmp_path, monkeypatch, name, content, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DatasetError) as error:
        Dataset(name).check()
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_an_error_in_a_parquet_file_names_the_row(tmp_path):
    path = written(tmp_path, "d.parquet", [{"user_prompt": "a"}, {"user_prompt": None}])
    with pytest.raises(DatasetError) as error:
        Dataset(path).check()
    assert str(error.value) == f"{path}:2: user_prompt: is null, not a text"
    assert (error.value.line, error.value.field) == (2, "user_prompt")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DatasetError, match="there is no such file"):
        Dataset(tmp_path / "none.jsonl")


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # its import fails
    (tmp_path / "d.parquet").write_text("x")
    with pytest.raises(MissingExtraError, match=r"^d\.parquet: a Parquet file needs the extra 'parquet': pip install"):
        Dataset(tmp_path / "d.parquet").check()


def test_datasets_import_pyarrow_only_for_parquet(tmp_path):
    path = written(tmp_path, "d.jsonl", [SDK])
    code = f"import sys; from osmosis_grpc.records.evaluate import Dataset; Dataset({str(path)!r}).check(); "
    assert run("-c", code + "print('pyarrow' in sys.modules)").stdout == "False\n"


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip)


@given(st.lists(TEXTS, min_size=1, max_size=5), st.sampled_from(["", " ", "\n", "\r\n \t"]), st.booleans())
def test_a_json_list_is_read_as_json_reads_it(tmp_path_factory, texts, space, ascii_only):
    path = tmp_path_factory.mktemp("json") / "d.json"
    objects = [json.dumps({"user_prompt": text, "n": n}, ensure_ascii=ascii_only) for n, text in enumerate(texts)]
    path.write_text(f"{space}[{space}{f'{space},{space}'.join(objects)}{space}]{space}", encoding="utf-8", newline="")
    assert [row.messages[0]["content"] for row in Dataset(path).rows()] == texts


def test_a_json_row_may_be_longer_than_what_is_read_at_once(tmp_path):
    texts = ["x" * size for size in (CHUNK - 30, 3 * CHUNK, 1, 10 * CHUNK)]
    path = written(tmp_path, "d.json", [{"user_prompt": text} for text in texts])
    assert [row.messages[0]["content"] for row in Dataset(path).rows()] == texts


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["d.jsonl", *(pytest.param(name, marks=pytest.mark.long) for name in ("d.json", "d.csv", "d.parquet"))]
)
def test_a_million_rows_take_less_than_200_mib(tmp_path, name):
    count, path = 1_000_000, tmp_path / name
    line = json.dumps({"user_prompt": "What is 2 + 3? " * 8, "ground_truth": "5"})
    if name == "d.parquet":
        import pyarrow as pa
        from pyarrow import parquet

        column = pa.array(["What is 2 + 3? " * 8] * count)
        parquet.write_table(pa.table({"user_prompt": column}), path, row_group_size=10_000)
        del column
    else:
        first, between, last = {"d.json": ("[", ",\n", "]"), "d.jsonl": ("", "\n", "\n")}.get(name, ("", "\n", "\n"))
        row = "What is 2 + 3?,5" if name == "d.csv" else line
        with path.open("w") as file:
            file.write("user_prompt,ground_truth\n" if name == "d.csv" else first)
            for number in range(count):
                file.write((between if number else "") + row)
            file.write(last)
    code = f"""
import re
from pathlib import Path
from osmosis_grpc.records.evaluate import Dataset
print(Dataset({str(path)!r}).check(), re.search("VmHWM:[^0-9]*([0-9]+)", Path("/proc/self/status").read_text())[1])
"""
    rows, kib = map(int, run("-c", code, timeout=300).stdout.split())
    assert rows == count
    assert kib < 200 * 1024


def test_a_blank_line_before_the_header_of_a_csv_file_is_skipped(tmp_path):
    (tmp_path / "d.csv").write_text("\n\nuser_prompt,ground_truth\n\nq,1\n")
    assert (only(tmp_path / "d.csv").label, only(tmp_path / "d.csv").line) == ("1", 5)


def test_an_empty_cell_is_no_system_prompt(tmp_path):
    (tmp_path / "d.csv").write_text("user_prompt,system_prompt\nq,\n")
    assert only(tmp_path / "d.csv").messages == [{"role": "user", "content": "q"}]


def test_an_empty_cell_is_no_label(tmp_path):
    (tmp_path / "d.csv").write_text("user_prompt,ground_truth,label\nq,,\nq,,4\n")
    assert [row.label for row in Dataset(tmp_path / "d.csv").rows()] == [None, "4"]
    assert "ground_truth" not in next(Dataset(tmp_path / "d.csv").rows()).metadata


def test_a_column_does_not_replace_the_number_of_the_row(tmp_path):
    rows = [{"user_prompt": "q", "row_index": 7}, {"user_prompt": "q", "metadata": {"row_index": 8, "a": 1}}]
    found = [row.metadata for row in Dataset(written(tmp_path, "d.jsonl", rows)).rows()]
    assert found == [{"row_index": 0}, {"row_index": 1, "a": 1}]


def test_the_metadata_has_the_label_of_a_mapped_column(tmp_path):
    rows = [{"user_prompt": "q", "answer": "A", "ground_truth": "B", "metadata": {"ground_truth": "C"}}]
    row = only(written(tmp_path, "d.jsonl", rows), columns={"ground_truth": "answer"})
    assert (row.label, row.metadata) == ("A", {"row_index": 0, "ground_truth": "A"})


def test_the_first_label_that_is_not_null_counts(tmp_path):
    rows = [{"user_prompt": "q", "ground_truth": None, "label": None, "reward_model": {"ground_truth": 4}}]
    assert only(written(tmp_path, "d.jsonl", rows)).label == "4"
    rows[0]["label"] = "5"
    assert only(written(tmp_path, "d.jsonl", rows)).label == "5"


@pytest.mark.parametrize("column", ["x", "ground_truth", "messages"])
def test_a_value_that_is_nested_too_deeply_is_an_error_with_its_place(tmp_path, column):
    nested = "[" * 500 + "]" * 500
    value = f'[{{"role": "user", "content": {nested}}}]' if column == "messages" else nested
    prompt = "" if column == "messages" else '"user_prompt": "q", '
    (tmp_path / "d.jsonl").write_text(f'{{{prompt}"{column}": {value}}}\n')
    with pytest.raises(DatasetError, match=rf"d.jsonl:1: {column}.*deep"):
        only(tmp_path / "d.jsonl")


def test_a_label_of_a_parquet_file_is_null_or_a_text(tmp_path):
    rows = [{"user_prompt": "q", "ground_truth": 1.5}, {"user_prompt": "q", "ground_truth": float("nan")}]
    assert [row.label for row in Dataset(written(tmp_path, "d.parquet", rows)).rows()] == ["1.5", None]
    with pytest.raises(DatasetError, match=r"d.parquet:1: ground_truth: has bytes, not a text"):
        only(written(tmp_path, "d.parquet", [{"user_prompt": "q", "ground_truth": b"a"}]))


def test_nulls_that_parquet_puts_into_parts_of_a_message_are_dropped(tmp_path):
    parts = [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": "https://a/b"}}]
    rows = [{"messages": [{"role": "user", "content": parts}]}]
    assert only(written(tmp_path, "d.parquet", rows)).messages == rows[0]["messages"]


def test_a_parquet_file_with_a_column_twice_is_an_error(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["user_prompt", "user_prompt"])
    parquet.write_table(table, tmp_path / "d.parquet")
    with pytest.raises(DatasetError, match="has a column twice: user_prompt"):
        only(tmp_path / "d.parquet")
