"""The lines after a run: what failed, what has no reward or score, what was cut, and the lowest rewards."""

import pytest

from osmosis_grpc.cli.noted_rows import MOST_LINES, Noted
from osmosis_grpc.records.evaluate import RowResult


def row(number, *, status="COMPLETED", reward=1.0, recorded=True, **fields):
    """A result. A row that was refused is not in the journal."""
    return RowResult(
        row_index=number,
        line=number + 1,
        rollout_id=f"test-a-{number}",
        status=status,
        reward=reward,
        token_usage={"total_tokens": 1} if recorded else {},
        **fields,
    )


def lines(*results, rewards=True):
    noted = Noted(rewards=rewards)
    for result in results:
        noted.add(result)
    return list(noted.lines())


@pytest.mark.parametrize(
    ("results", "expected"),
    {
        "all good": ([row(0), row(1)], []),
        "failed": ([row(0), row(1, status="FAILED", reward=None)], [("1 failed (row 1)", "1")]),
        "refused": ([row(0, status="REFUSED", reward=None, recorded=False)], [("1 failed (row 0)", "")]),
        "refused and failed": (
            [row(0, status="REFUSED", recorded=False), row(1, status="FAILED")],
            [("2 failed (rows 0, 1)", "1")],
        ),
        "a tool that raised": (
            [row(10, tool_errors=1), row(2, tool_errors=2), row(3)],
            [("2 with errors of tools (rows 2, 10)", "2")],
        ),
        "no reward": ([row(0, reward=None), row(1)], [("1 without a reward (row 0)", "0")]),
        "no score": ([row(0, scores={}, score_errors={"f": "x"})], [("1 without a score (row 0)", "0")]),
        "cut": ([row(0, cut="length"), row(1)], [("1 row cut by length (row 0)", "0")]),
        "zeros": ([row(0, reward=0.0), row(1, reward=0.0)], [("lowest reward 0 (rows 0, 1)", "0")]),
        "low": ([row(0), row(1, reward=0.25)], [("lowest reward 0.25 (row 1)", "1")]),
        "equal and positive": ([row(0, reward=0.5), row(1, reward=0.5)], []),
        "many": ([row(n, reward=0.0) for n in range(7)], [("lowest reward 0 (rows 0, 1, 2, 3, 4 and 2 more)", "0")]),
    }.values(),
)
def test_each_kind_has_a_line_with_the_row_to_look_at(results, expected):
    assert lines(*results) == expected


def test_there_are_at_most_three_lines_and_failures_come_first():
    found = lines(
        row(0, reward=0.0), row(1, status="FAILED"), row(2, reward=None), row(3, cut="max_turns"), row(4, cut="length")
    )
    assert len(found) == MOST_LINES
    assert [text.partition(" (")[0] for text, _ in found] == [
        "1 failed",
        "1 without a reward",
        "1 row cut by max_turns",
    ]


def test_with_eval_functions_the_scores_count_and_not_the_own_rewards():
    assert lines(row(0, reward=None), row(1, reward=0.0), rewards=False) == []
    scored = row(0, scores={"f": 0.5, "g": 1.0}), row(1, scores={"f": 0.25, "g": 1.0}, reward=0.0)
    assert lines(*scored, rewards=False) == [("lowest f 0.25 (row 1)", "1")]
