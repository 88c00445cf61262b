from copy import deepcopy
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.runtime.executor import Gather, lost
from actors.runtime.worker import merge_whole
from relief_ray.core.messages import WeightedSum
from relief_ray.server.aggregation import by_samples, one_bucket, uniform
from relief_ray.server.reduction import blocks
from relief_ray.support.errors import LeftOut
from relief_ray.training.executor import SerialExecutor, Worker
from tests.actors.runtime.federation import make_job, make_states, make_tasks, same_round, start_models


@lru_cache(maxsize=1)
def trained(folder):
    """A round of twelve clients by the plain loop, and the same clients one by one and block by block."""
    job = make_job(folder, 12)
    tasks, models, states = make_tasks(job), start_models(job), make_states(job)
    whole = SerialExecutor(job).train(2, models, tasks, states)
    worker = Worker(job)
    singles, joined = (
        list(worker.train_blocks(2, models, cut, states)) for cut in ([[t] for t in tasks], blocks(tasks))
    )
    return tasks, whole, singles, joined


def numbers(cut):
    """The number of every client's block."""
    return {task.client: number for number, block in enumerate(cut) for task in block}


@settings(deadline=None, max_examples=30)
@given(order=st.permutations(range(12)))
def test_any_order_of_arrival_and_any_cut_gives_the_bits_of_the_plain_loop(tmp_path_factory, order):
    tasks, whole, singles, _ = trained(tmp_path_factory.getbasetemp())
    cut = blocks(tasks)
    assert [len(b) for b in cut] == [1, 2] * 4
    gather, block_of = Gather(cut), numbers(cut)
    for client in order:
        gather.add(block_of[client], (client,), singles[client])
    assert same_round(gather.finish(0), whole)


@settings(deadline=None, max_examples=20)
@given(split=st.integers(0, 8), turned=st.booleans())
def test_blocks_that_hosts_have_merged_give_the_bits_of_the_plain_loop(tmp_path_factory, split, turned):
    tasks, whole, _, joined = trained(tmp_path_factory.getbasetemp())
    cut, results = blocks(tasks), deepcopy(joined)  # hosts add to their own sums in place
    gather, runs = Gather(cut), [(0, split), (split, 8)]
    for first, stop in reversed(runs) if turned else runs:
        rest, nodes = merge_whole(iter(results[first:stop]), range(first, stop), len(cut))
        gather.add_whole(dict(zip(range(first, stop), rest, strict=True)), nodes)
    assert same_round(gather.finish(0), whole)


def test_a_second_answer_of_the_same_clients_is_ignored(tmp_path):
    tasks, whole, singles, _ = trained(tmp_path)
    cut = blocks(tasks)
    gather, block_of = Gather(cut), numbers(cut)
    for client, single in enumerate(singles):
        gather.add(block_of[client], (client,), single)
        gather.add(block_of[client], (client,), single)
    assert same_round(gather.finish(0), whole)


NO_NODE = LeftOut(cause="lost", why="its node died")


def test_lost_clients_leave_a_reason_and_nothing_else(tmp_path):
    tasks, _, singles, _ = trained(tmp_path)
    cut = blocks(tasks)
    gather, block_of = Gather(cut), numbers(cut)
    for client, single in enumerate(singles):
        gather.add(block_of[client], (client,), lost([4], NO_NODE) if client == 4 else single)
    gathered = gather.finish(7)
    assert gathered.rejected == {4: NO_NODE} and gathered.moved_bytes == 7
    assert [r.assignment.client for r in gathered.reduced.receipts] == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11]
    assert all(4 not in part.members for part in gathered.reduced.sums["global"].values())


@pytest.mark.ci
@pytest.mark.parametrize("weight", [by_samples, uniform])
@pytest.mark.parametrize("split", [0, 3, 4, 8])
def test_blocks_merged_as_they_come_out_of_lent_memory_give_the_bits_of_the_plain_loop(tmp_path, weight, split):
    """A round whose deltas only the sums need: each lies where the next client trains, and is added before that."""
    job = make_job(tmp_path, 20, reduction=WeightedSum(weight=weight, bucket=one_bucket), pairwise_every=0)
    tasks, models, states = make_tasks(job), start_models(job), make_states(job)
    cut = blocks(tasks)
    gather = Gather(cut)
    for numbers_ in (range(split), range(split, 8)):
        results = Worker(job).train_blocks(1, models, [cut[i] for i in numbers_], states)
        rest, nodes = merge_whole(results, numbers_, len(cut))
        gather.add_whole(dict(zip(numbers_, rest, strict=True)), nodes)
    assert same_round(gather.finish(0), SerialExecutor(job).train(1, models, tasks, states))


def test_as_many_numbers_as_blocks(tmp_path):
    job = make_job(tmp_path, 3)
    results = Worker(job).train_blocks(1, start_models(job), [[t] for t in make_tasks(job)], make_states(job))
    with pytest.raises(AssertionError, match="more blocks than the numbers"):
        merge_whole(results, range(2), 3)
