"""The statistics of scores: pass@k, means, and intervals."""

import itertools
import math
import random
import statistics
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from osmosis_grpc.trainer.score_statistics import Scores, estimate, pass_at_k, t_quantile


@st.composite
def runs(draw):
    n = draw(st.integers(1, 300))
    return n, draw(st.integers(0, n)), draw(st.integers(1, n))


@given(runs())
@example((1, 0, 1))
@example((1, 1, 1))
@example((300, 1, 1))
def test_pass_at_k_is_the_closed_form(drawn):
    n, c, k = drawn
    exact = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
    assert pass_at_k(n, c, k) == float(exact)


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_pass(passed, data):
    k = data.draw(st.integers(1, len(passed)))
    draws = [any(draw) for draw in itertools.combinations(passed, k)]
    assert pass_at_k(len(passed), sum(passed), k) == pytest.approx(sum(draws) / len(draws))


@pytest.mark.parametrize(("n", "c", "k"), [(3, 1, 4), (3, 1, 0), (3, 4, 1), (3, -1, 1)])
def test_pass_at_k_outside_its_range_is_an_error(n, c, k):
    with pytest.raises(ValueError):
        pass_at_k(n, c, k)


@given(st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=5), min_size=1, max_size=5), st.data())
def test_the_summary_has_pass_at_k_for_every_k_that_a_row_reaches(rows, data):
    threshold = data.draw(st.floats(-10, 10))
    scores = Scores(threshold)
    for number, row in enumerate(rows):
        for score in row:
            scores.add(number, score, completed=True)
    found = scores.summary()
    assert list(found.pass_at_k) == list(range(1, max(map(len, rows)) + 1))
    for k, value in found.pass_at_k.items():
        each = [pass_at_k(len(row), sum(s >= threshold for s in row), k) for row in rows if len(row) >= k]
        assert value.mean == pytest.approx(sum(each) / len(each))
    values = [list(found.pass_at_k.values())[k].mean for k in range(min(map(len, rows)))]
    assert values == sorted(values)


def test_a_failed_rollout_has_not_passed_and_a_failed_score_does_not_count():
    scores = Scores(1.0)
    scores.add(0, 1.0, completed=True)
    scores.add(0, None, completed=False)
    scores.add(0, None, completed=True)
    found = scores.summary()
    assert (found.scored, found.failed, found.mean.mean) == (1, 1, 1.0)
    assert {k: each.mean for k, each in found.pass_at_k.items()} == {1: 0.5, 2: 1.0}


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (2, 4.3027), (5, 2.5706), (10, 2.2281), (30, 2.0423), (10_000, 1.9602)]
)
def test_the_quantiles_are_those_of_the_tables(freedom, quantile):
    assert t_quantile(freedom) == pytest.approx(quantile, abs=1e-4)


def test_the_interval_of_equal_rows_is_the_t_interval_of_their_means():
    rows = [[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
    means = [statistics.mean(row) for row in rows]
    found = estimate(rows)
    error = statistics.stdev(means) / 2
    assert found.mean == statistics.mean(means)
    assert found.stderr == pytest.approx(error)
    assert found.ci95 == pytest.approx((found.mean - 3.18245 * error, found.mean + 3.18245 * error), abs=1e-4)
    assert estimate(rows, (0.4, 0.6)).ci95 == (0.4, 0.6)


def test_an_interval_of_scores_from_0_to_1_is_within_0_and_1():
    scores, larger = Scores(1.0), Scores(1.0)
    for row, score in enumerate((0.0, 0.0, 1.0)):
        scores.add(row, score, completed=True)
        larger.add(row, 2 * score, completed=True)
    found = scores.summary()
    assert found.mean == found.pass_at_k[1]
    assert (found.mean.ci95[0], found.mean.ci95[1]) == (0.0, 1.0)
    assert larger.summary().mean.ci95[0] < 0


def test_one_row_has_no_interval():
    found = estimate([[1.0, 0.0, 0.5]])
    assert (found.mean, found.stderr, found.ci95) == (0.5, None, None)


def test_the_interval_has_the_mean_in_95_of_100_samples():
    drawn = random.Random(4711)
    hits = 0
    for _ in range(2000):
        rows = []
        for _ in range(8):
            centre = drawn.gauss(3, 1)  # the runs of a row are like each other
            rows.append([drawn.gauss(centre, 0.5) for _ in range(3)])
        low, high = estimate(rows).ci95
        hits += low <= 3 <= high
    assert 0.93 <= hits / 2000 <= 0.97


def test_the_record_has_the_names_of_the_sdk():
    scores = Scores(1.0)
    for score in (0.0, 1.0):
        scores.add(0, score, completed=True)
    record = scores.summary().record()
    assert {name: record[name] for name in ("mean", "min", "max", "pass_at_1", "pass_at_2")} == {
        "mean": 0.5,
        "min": 0.0,
        "max": 1.0,
        "pass_at_1": 0.5,
        "pass_at_2": 1.0,
    }
    assert record["std"] == pytest.approx(statistics.stdev([0.0, 1.0]))
    nothing = Scores(1.0).summary().record()
    assert (nothing["mean"], nothing["stderr"], nothing["ci95"], nothing["std"]) == (None, None, None, None)
