"""The tree that block sums are merged along."""

import weakref

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.runtime.worker import merge_whole
from relief_ray.core.groups import GroupLayout, ParamGroup, pack
from relief_ray.core.messages import GroupSum, WeightedSum
from relief_ray.server.aggregation import check_update, one_bucket
from relief_ray.server.reduction import CHUNK, Accumulator, Node, Tree, leaf, merge_blocks
from relief_ray.training.job import BlockResult
from tests.toy import fleet_of, task_of, update_of


def block(number):
    """A block's float64 sum of many sizes: its total depends on the order of additions."""
    make = torch.Generator().manual_seed(number)
    total = torch.rand(64, generator=make, dtype=torch.float64) * 10.0 ** (8 * (number % 2))
    part = GroupSum(weight=1.0, weighted=total, plain=total, sq_norm=float(number), members=(number,))
    return {"global": {"A": part}}


def plain(sums):
    return sums["global"]["A"].plain.tolist()


def test_blocks_are_added_pairwise():
    a, b, c, d, e = (block(i)["global"]["A"].plain for i in range(5))
    merged = merge_blocks(block(i) for i in range(5))
    assert plain(merged) == (((a + b) + (c + d)) + e).tolist() != ((((a + b) + c) + d) + e).tolist()
    assert merged["global"]["A"].members == (0, 1, 2, 3, 4) and merged["global"]["A"].sq_norm == 10.0


def test_one_block_and_none():
    assert plain(merge_blocks([block(1)])) == plain(block(1)) and merge_blocks([]) == {}
    assert Tree(1).root == Tree(0).root == Node(level=0, index=0)
    assert [Tree(n).root.level for n in (2, 3, 4, 5, 8)] == [1, 2, 2, 3, 3]


def merged(numbers, of):
    return merge_whole((BlockResult(sums=block(i), receipts=(), states={}) for i in numbers), numbers, of)[1]


@given(st.integers(1, 8), st.data())
def test_whoever_merges_what_the_bits_are_the_same(number, data):
    """Every block goes to one of three hosts, in runs or not; their answers come in any order."""
    host_of = data.draw(st.lists(st.integers(0, 2), min_size=number, max_size=number))
    tree = Tree(number)
    for host in data.draw(st.permutations(sorted(set(host_of)))):
        for node, sums in merged([i for i in range(number) if host_of[i] == host], number).items():
            tree.add(node, Accumulator(sums))
    assert plain(tree.settled()) == plain(merge_blocks(block(i) for i in range(number)))


def test_a_host_sends_as_few_sums_as_it_can():
    assert list(merged([0, 1, 2, 3], 8)) == [Node(level=2, index=0)]
    assert list(merged([3, 4, 5], 8)) == [Node(level=0, index=3), Node(level=1, index=2)]
    assert list(merged([0, 1, 6, 7], 8)) == [Node(level=1, index=0), Node(level=1, index=3)]
    assert list(merged([4, 5], 6)) == [Node(level=2, index=1)], "6 and 7 do not exist"


def test_a_host_merges_a_block_before_the_next_one_is_computed():
    """Counts the tensors alive when blocks 0 to 3 are requested: those added to another block's are gone."""
    made, alive = {}, []

    def computed():
        for i in range(4):
            alive.append({n for n, tensor in made.items() if tensor() is not None})
            sums = block(i)
            made[i] = weakref.ref(sums["global"]["A"].plain)
            yield BlockResult(sums=sums, receipts=(), states={})
            del sums

    rest, nodes = merge_whole(computed(), range(4), 4)
    assert alive == [set(), {0}, {0}, {0, 2}] and list(nodes) == [Node(level=2, index=0)]
    assert [result.sums for result in rest] == [{}] * 4


def test_what_comes_in_is_never_written_to():
    parts = [block(i) for i in range(5)]
    merge_blocks(parts)
    assert [plain(p) for p in parts] == [plain(block(i)) for i in range(5)]


def literal(deltas, weights):
    """``(sum w d, sum d, sum |d|^2)`` in float64, one client after the other, squares by chunks of 65,536 values."""
    squares = []
    for d in deltas:
        square = 0.0
        for chunk in d.split(65_536):
            exact = chunk.double().clone()
            square += float(exact.dot(exact))
        squares.append(square)
    weighted, plain, square = deltas[0].double() * weights[0], deltas[0].double(), squares[0]
    for d, w, s in zip(deltas[1:], weights[1:], squares[1:], strict=True):
        weighted, plain, square = weighted + d.double() * w, plain + d.double(), square + s
    return weighted, plain, square


SIZES = st.sampled_from([1, 7, 64, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 9])


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(SIZES, min_size=1, max_size=3),
    clients=st.lists(st.tuples(st.sampled_from([1.0, 0.3, 3.0]), st.sampled_from(["all", "some", "bad"])), min_size=1),
    borrowed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_norms_and_sums_are_those_of_the_plain_loop_to_the_bit(sizes, clients, borrowed, seed):
    """Also where updates lie one after the other in the same memory, and one that is not finite is left out."""
    layout = GroupLayout(
        ParamGroup(id=f"g{i}", role="encoder", modality=None, layer=i + 1, tensors=pack([("w", (n,), "weight")]))
        for i, n in enumerate(sizes)
    )
    fleet, make = fleet_of(*[("acc",)] * len(clients)), torch.Generator().manual_seed(seed)
    reduction = WeightedSum(weight=lambda group, client, task: clients[client.id][0], bucket=one_bucket)
    memory, total, sent = torch.empty(layout.numel), Accumulator(), []
    for number, (weight, kind) in enumerate(clients):
        flat = torch.randn(layout.numel, generator=make)
        if kind == "bad":
            flat[int(torch.randint(layout.numel, (1,), generator=make))] = float("inf")
        views = layout.views(memory.copy_(flat) if borrowed else flat.clone())
        up = {j: d for j, d in views.items() if kind != "some" or j == "g0"}
        update = update_of(task_of(layout, number, tuple(up)), up)
        if kind == "bad":
            assert "not finite" in check_update(update, layout)
            continue
        assert check_update(update, layout) is None
        total.add(leaf(update, reduction, layout, fleet), borrowed=borrowed)
        sent.append((weight, {j: layout.views(flat)[j] for j in up}, update.receipt.sq_norm))
    memory.fill_(float("nan"))
    for j, part in total.settled().get("global", {}).items():
        mine = [(w, d[j], squares[j]) for w, d, squares in sent if j in d]
        weighted, plain, square = literal([d for _, d, _ in mine], [w for w, _, _ in mine])
        assert torch.equal(part.plain, plain) and torch.equal(part.weighted, weighted) and part.sq_norm == square
        assert all(literal([d], [w])[2] == s for w, d, s in mine)
    assert bool(sent) == bool(total.sums())
