import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.engine.pairs import Times, averaged, slope, take_turns, timed


def test_turns_alternate_and_reverse():
    calls = []

    def segment(name):
        def run(num_rounds):
            calls.append(name)
            return [1.0] * num_rounds

        return run

    times = take_turns({"a": segment("a"), "b": segment("b")}, num_turns=3, num_rounds=2)
    assert calls == ["a", "b", "b", "a", "a", "b"]
    assert times.turns == {"a": (1.0, 1.0, 1.0), "b": (1.0, 1.0, 1.0)}


def test_the_ratio_is_taken_inside_turns():
    """A machine that slows down by ten between turns changes no ratio."""
    times = Times(turns={"slow": (2.0, 20.0, 6.0), "fast": (1.0, 10.0, 2.0)})
    assert times.ratio("slow", "fast") == 2.0
    assert times.difference_s("slow", "fast") == 4.0
    assert times.median_s("slow") == 6.0
    assert times.spread("slow") == pytest.approx(1.5)


@given(st.floats(-5, 5), st.floats(-5, 5), st.lists(st.integers(1, 200), min_size=2, max_size=6, unique=True))
def test_slope_finds_a_line(start, per_client, sizes):
    assert slope(sizes, [start + per_client * n for n in sizes]) == pytest.approx(per_client, abs=1e-9)


def test_timed_gives_one_value_per_call():
    calls = []
    seconds = timed(lambda: calls.append(1))(4)
    assert len(calls) == len(seconds) == 4 and min(seconds) >= 0


def test_averaged_rounds_keep_what_a_median_hides():
    assert averaged(lambda number: [1.0] * (number - 1) + [11.0])(5) == [3.0]
