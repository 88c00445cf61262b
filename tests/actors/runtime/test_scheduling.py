"""How a round is cut into calls: on seconds that were seen, with costs computed by hand."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.runtime.scheduling import (
    ANSWER_S_PER_BYTE,
    CALL_S,
    LONG_S,
    Scheduler,
    merged_calls,
    single_calls,
    stacked_calls,
)
from relief_ray.core.messages import Assignment, StageTimes

# Bytes whose travel takes 10 ms.
NBYTES = round(0.01 / ANSWER_S_PER_BYTE)


def task(client, groups=2, epochs=1):
    return Assignment(client=client, down={}, train=dict.fromkeys(range(groups)), up={}, epochs=epochs)


def cut_of(num_blocks, per_block=1):
    return [(i, tuple(task(i * per_block + k) for k in range(per_block))) for i in range(num_blocks)]


def numbers(calls):
    return [[i for i, _ in call] for call in calls]


def receipt(client, seconds, groups=2, epochs=1):
    stages = StageTimes(forward_s=seconds / 2, backward_s=seconds / 4, optimizer_s=seconds / 4)
    work = SimpleNamespace(measured=stages)
    return SimpleNamespace(assignment=task(client, groups, epochs), work=work, bytes_up=0)


# At once or one by one -------------------------------------------------------------------------------------------


def test_equal_clients_go_to_two_hosts_in_halves_of_the_tree():
    """Apart: 4 x 0.1 s, 8 ms of calls, 8 x 10 ms; halves: 4 x 0.1 s, 2 ms, 2 x 2 x 10 ms."""
    assert numbers(merged_calls(cut_of(8), 2, dict.fromkeys(range(8), 0.1), NBYTES)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_slow_half_is_broken_up_where_that_costs_less():
    """Blocks of 0.1 s four times, then 0.01 s. Apart: 0.22 s and 8 x 20 ms; halves: 0.4 s and 2 x 20 ms; pairs: 0.22 s
    and 4 x 20 ms."""
    seconds = {i: 0.05 if i < 8 else 0.005 for i in range(16)}
    assert numbers(merged_calls(cut_of(8, per_block=2), 2, seconds, NBYTES)) == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_one_host_has_all_in_one_call():
    assert numbers(merged_calls(cut_of(5), 1, dict.fromkeys(range(5), 0.05), NBYTES)) == [[0, 1, 2, 3, 4]]


def test_a_round_with_one_client_is_one_call_either_way():
    assert merged_calls(cut_of(1), 2, {0: 0.1}, NBYTES) is None
    assert numbers(single_calls(cut_of(1), 2, {0: 1.0})) == [[0]]


def test_where_nothing_is_gained_hosts_balance_by_themselves():
    """No data travel here, so 3 % of 0.4 s are more than the calls cost."""
    assert merged_calls(cut_of(8), 2, dict.fromkeys(range(8), 0.1), 0) is None


def test_long_rounds_stay_in_single_calls():
    seconds = dict.fromkeys(range(8), LONG_S / 4)
    assert merged_calls(cut_of(8), 2, seconds, 100 * NBYTES) is not None
    assert merged_calls(cut_of(8), 2, {**seconds, 0: LONG_S}, 100 * NBYTES) is None


def test_clients_that_may_share_steps_share_a_call():
    assert numbers(stacked_calls(cut_of(8), 3)) == [[0, 1], [2, 3, 4], [5, 6, 7]]
    assert numbers(stacked_calls(cut_of(2), 3)) == [[0], [1]]
    assert numbers(stacked_calls([], 3)) == []


def test_single_calls_begin_with_the_most_work():
    assert numbers(single_calls(cut_of(4), 2, {0: 1, 1: 3, 2: 2, 3: 4})) == [[3], [1], [2], [0]]


def test_many_hosts_share_blocks_client_by_client():
    calls = single_calls(cut_of(2, per_block=3), 2, dict.fromkeys(range(6), 1.0))
    assert [[t.client for _, part in call for t in part] for call in calls] == [[0], [1], [2], [3], [4], [5]]


@given(
    st.lists(st.floats(0.0, 0.3), min_size=1, max_size=8), st.integers(1, 3), st.integers(1, 4), st.integers(0, 10**8)
)
def test_whatever_is_chosen_has_every_block_once_and_ends_no_later_than_expected(spent, per_block, slots, nbytes):
    cut = cut_of(len(spent), per_block)
    seconds = {t.client: spent[i] for i, part in cut for t in part}
    calls = merged_calls(cut, slots, seconds, nbytes)
    if calls is None:
        return
    assert len(calls) <= slots and all(call == tuple(sorted(call, key=lambda p: p[0])) for call in calls)
    assert sorted((piece for call in calls for piece in call), key=lambda p: p[0]) == cut
    # The busiest host's seconds alone stay below the price of single calls, whose seconds are at least the mean.
    total_s = per_block * sum(spent)
    singles = len(cut) if 2 * slots <= len(cut) or per_block == 1 else len(cut) * per_block
    most_s = max(sum(seconds[t.client] for _, part in call for t in part) for call in calls)
    longest_s = max(seconds.values()) * (per_block if singles == len(cut) else 1)
    list_scheduling_s = total_s / slots + longest_s
    travel_s = ANSWER_S_PER_BYTE * nbytes * 2 * singles
    assert most_s <= list_scheduling_s + CALL_S * singles + travel_s + 1e-9


# What clients will take ------------------------------------------------------------------------------------------


def test_a_client_takes_what_it_took_and_its_share_of_what_is_not_training():
    scheduler = Scheduler(None, None, by_client=False)
    scheduler.note([receipt(0, 0.2), receipt(1, 0.4)], busy_s=0.8)
    assert scheduler.foresee([task(0), task(1)]) == pytest.approx({0: 0.3, 1: 0.5})


def test_more_groups_or_epochs_take_longer_in_proportion():
    scheduler = Scheduler(None, None, by_client=False)
    scheduler.note([receipt(0, 0.2)], busy_s=0.2)
    assert scheduler.foresee([task(0, groups=3, epochs=2)]) == pytest.approx({0: 0.6})


def test_a_client_that_was_never_timed_gets_no_estimate():
    scheduler = Scheduler(None, None, by_client=False)
    scheduler.note([receipt(0, 0.2)], busy_s=0.2)
    assert scheduler.foresee([task(0), task(1)]) is None


def test_a_client_without_work_is_taken_as_it_was():
    scheduler = Scheduler(None, None, by_client=False)
    scheduler.note([receipt(0, 0.0, epochs=0)], busy_s=0.01)
    assert scheduler.foresee([task(0)]) == {0: 0.01}
