import numpy as np
import pytest
import torch

from relief_ray.server.reduction import add_exactly

F32, F64 = torch.float32, torch.float64
TINY = 2.0**-30


@pytest.mark.parametrize(("first", "second"), [(F32, F32), (F32, F64), (F64, F32), (F64, F64)])
def test_sums_are_float64_whatever_comes_in(first, second):
    """In float32 the second addend would be lost beside the first."""
    a, b = torch.ones(70_000, dtype=first), torch.full((70_000,), TINY, dtype=second)
    total = add_exactly(a, b, torch.empty(70_000, dtype=F64))
    assert bool((total == 1.0 + TINY).all()) and bool((a == 1).all()) and bool((b == TINY).all())


def test_the_sum_is_rounded_once():
    """1 + (2^-24 + 2^-50): rounding the addend to float32 first would leave a tie, which goes to even, that is 1."""
    total = add_exactly(torch.ones(3), torch.full((3,), 2.0**-24 + 2.0**-50, dtype=F64), torch.empty(3))
    assert total.dtype == F32 and total.tolist() == [1.0 + 2.0**-23] * 3


def test_into_one_of_the_addends():
    total = torch.arange(5, dtype=F64)
    assert add_exactly(total, torch.ones(5), total) is total and total.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_parts_of_tensors_and_nothing_at_all():
    every_other = torch.arange(6.0)[::2]
    assert add_exactly(every_other, every_other, torch.empty(3, dtype=F64)).tolist() == [0.0, 4.0, 8.0]
    assert add_exactly(torch.empty(0), torch.empty(0), torch.empty(0)).tolist() == []


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_what_another_process_shares_is_only_read():
    shared = np.ones(4, np.float32)
    shared.setflags(write=False)
    assert add_exactly(torch.from_numpy(shared), torch.ones(4), torch.empty(4)).tolist() == [2.0] * 4


def test_values_that_overflow_are_infinite_without_a_warning():
    huge = torch.full((2,), 3e38)
    assert add_exactly(huge, huge, torch.empty(2)).tolist() == [float("inf")] * 2
