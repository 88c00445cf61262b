from functools import lru_cache

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.gather import Gather, lost
from relief_ray.server.aggregation import blocks
from relief_ray.training.serial import SerialExecutor
from relief_ray.training.worker import Worker
from tests.actors.scenes import make_job, make_states, make_tasks, start_models


def same_round(a, b):
    """Two rounds with the same bits (measured seconds aside)."""
    assert {k: list(v) for k, v in a.reduced.sums.items()} == {k: list(v) for k, v in b.reduced.sums.items()}
    for bucket, groups in a.reduced.sums.items():
        for j, part in groups.items():
            other = b.reduced.sums[bucket][j]
            assert torch.equal(part.plain, other.plain) and torch.equal(part.weighted, other.weighted), j
            assert (part.weight, part.sq_norm, part.members) == (other.weight, other.sq_norm, other.members), j
    for mine, theirs in ((a.reduced.updates, b.reduced.updates), (a.pairwise, b.pairwise)):
        assert [u.receipt.assignment.client for u in mine] == [u.receipt.assignment.client for u in theirs]
        assert all(torch.equal(u.delta[j], v.delta[j]) for u, v in zip(mine, theirs, strict=True) for j in u.delta)
    assert [r.assignment for r in a.reduced.receipts] == [r.assignment for r in b.reduced.receipts]
    assert [r.work.loss for r in a.reduced.receipts] == [r.work.loss for r in b.reduced.receipts]
    assert [r.sq_norm for r in a.reduced.receipts] == [r.sq_norm for r in b.reduced.receipts]
    assert list(a.states) == list(b.states)
    assert all(torch.equal(s[k], b.states[c][k]) for c, s in a.states.items() for k in s)
    assert a.rejected == b.rejected
    return True


@lru_cache(maxsize=1)
def trained(folder):
    """A round of nine clients by the plain loop, and the same clients one by one."""
    job = make_job(folder, 9)
    tasks, models, states = make_tasks(job), start_models(job), make_states(job)
    whole = SerialExecutor(job).train(2, models, tasks, states)
    worker = Worker(job)
    return tasks, whole, [worker.train_block(2, models, [t], states) for t in tasks]


@settings(deadline=None, max_examples=30)
@given(order=st.permutations(range(9)))
def test_any_order_of_arrival_and_any_cut_gives_the_bits_of_the_plain_loop(tmp_path_factory, order):
    tasks, whole, singles = trained(tmp_path_factory.getbasetemp())
    cut = blocks(tasks)
    assert [len(b) for b in cut] == [2, 2, 2, 2, 1]
    gather = Gather(cut)
    for client in order:
        gather.add(client // 2, (client,), singles[client])
    assert same_round(gather.finish(0), whole)


def test_a_second_answer_of_the_same_clients_is_ignored(tmp_path):
    tasks, whole, singles = trained(tmp_path)
    gather = Gather(blocks(tasks))
    for client, single in enumerate(singles):
        gather.add(client // 2, (client,), single)
        gather.add(client // 2, (client,), single)
    assert same_round(gather.finish(0), whole)


def test_lost_clients_leave_a_reason_and_nothing_else(tmp_path):
    tasks, _, singles = trained(tmp_path)
    gather = Gather(blocks(tasks))
    for client, single in enumerate(singles):
        gather.add(client // 2, (client,), lost([4], "its node died") if client == 4 else single)
    found = gather.finish(7)
    assert found.rejected == {4: "its node died"} and found.moved_bytes == 7
    assert [r.assignment.client for r in found.reduced.receipts] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert all(4 not in part.members for part in found.reduced.sums["global"].values())
