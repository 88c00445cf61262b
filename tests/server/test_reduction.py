"""The tree that block sums are merged along."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from actors.hosts import merge_whole
from relief_ray.messages import GroupSum
from relief_ray.server.reduction import Accumulator, Node, Tree, merge_blocks


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
    found = merge_blocks(block(i) for i in range(5))
    assert plain(found) == (((a + b) + (c + d)) + e).tolist() != ((((a + b) + c) + d) + e).tolist()
    assert found["global"]["A"].members == (0, 1, 2, 3, 4) and found["global"]["A"].sq_norm == 10.0


def test_one_block_and_none():
    assert plain(merge_blocks([block(1)])) == plain(block(1)) and merge_blocks([]) == {}
    assert Tree(1).root == Tree(0).root == Node(level=0, index=0)
    assert [Tree(n).root.level for n in (2, 3, 4, 5, 8)] == [1, 2, 2, 3, 3]


def merged(numbers, of):
    return merge_whole([block(i) for i in numbers], numbers, of)


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


def test_what_comes_in_is_never_written_to():
    parts = [block(i) for i in range(5)]
    merge_blocks(parts)
    assert [plain(p) for p in parts] == [plain(block(i)) for i in range(5)]
