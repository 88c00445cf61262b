import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from actors.runtime.serialization import ALIGN_BYTES, Packed, pack, unpack
from relief_ray.server.reduction import merge_blocks
from relief_ray.training.executor import Worker
from tests.actors.runtime.federation import make_job, make_states, make_tasks, start_models

TYPES = st.sampled_from([np.float32, np.float64, np.int64, np.bool_, np.uint8])
TENSORS = arrays.arrays(dtype=TYPES, shape=arrays.array_shapes(min_dims=0, max_dims=3, min_side=0)).map(
    torch.from_numpy
)


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and pickle.dumps(a.numpy()) == pickle.dumps(b.numpy())


@given(st.dictionaries(st.text(max_size=3), TENSORS, max_size=6), st.booleans())
def test_tensors_come_back_bit_for_bit(tensors, own):
    packed = pack({"tensors": tensors, "plain": (1, "two", 3.0)})
    received = unpack(pickle.loads(pickle.dumps(packed)), copy=own)
    assert received["plain"] == (1, "two", 3.0)
    assert list(received["tensors"]) == list(tensors)
    assert all(same_bits(received["tensors"][k], t) for k, t in tensors.items())


def test_views_slices_and_transposed_tensors_travel_by_value():
    base = torch.arange(12.0).view(3, 4)
    sent = [base.T, base[:, 1], base[1:]]
    assert all(same_bits(a, b.contiguous()) for a, b in zip(unpack(pack(sent)), sent, strict=True))


def test_one_tensor_under_two_names_stays_one():
    tensor = torch.ones(5)
    packed = pack({"a": tensor, "b": tensor})
    received = unpack(packed)
    assert received["a"] is received["b"]
    assert len(packed.arrays) == 1


@pytest.mark.parametrize("shift", range(4))
def test_tensors_start_aligned_so_that_their_products_have_the_same_bits(shift):
    sent = [torch.ones(n) for n in (1, 3, 17)]
    packed = pack(sent)
    moved = tuple(np.frombuffer(b"\0" * 4 * shift + a.tobytes(), a.dtype, offset=4 * shift) for a in packed.arrays)
    received = unpack(Packed(body=packed.body, arrays=moved))
    assert all(same_bits(a, b) for a, b in zip(received, sent, strict=True))
    assert [t.data_ptr() % ALIGN_BYTES for t in received] == [0] * 3


def test_values_travel_in_numpy_arrays_alone():
    packed = pack({"theta": torch.arange(1000.0)})
    assert [a.nbytes for a in packed.arrays] == [4000]
    assert len(packed.body) == len(pack({"theta": torch.arange(2000.0)}).body), "of more values it is no longer"
    assert packed.nbytes == len(packed.body) + packed.arrays[0].nbytes


def test_received_tensors_share_memory_unless_owned():
    packed = pack([torch.zeros(100)])
    view, own = unpack(packed)[0], unpack(packed, copy=True)[0]
    packed.arrays[0].view(np.float32)[0] = 7.0
    assert (float(view[0]), float(own[0])) == (7.0, 0.0)


def test_read_only_arrays_are_looked_into_without_a_warning(recwarn):
    """As Ray's store hands them out."""
    packed = pack([torch.arange(100.0)])
    packed.arrays[0].setflags(write=False)
    (view,) = unpack(packed)
    assert view.data_ptr() == packed.arrays[0].ctypes.data and not recwarn.list
    assert unpack(packed, copy=True)[0].add_(1.0).sum() == 5050.0


@pytest.mark.parametrize("clients", [1, 2], ids=["single", "pair"])
def test_a_single_clients_sums_travel_in_half_the_bytes_without_loss(tmp_path, clients):
    job = make_job(tmp_path)
    result = next(Worker(job).train_blocks(1, start_models(job), [make_tasks(job)[:clients]], make_states(job)))
    packed = pack(result.sums)
    sent = unpack(packed)
    is_wide = any(part.plain.dtype == torch.float64 for groups in sent.values() for part in groups.values())
    assert is_wide == (clients == 2), "a group that both trained is a float64 sum"
    merged = merge_blocks([sent])
    for bucket, groups in merge_blocks([result.sums]).items():
        for j, part in groups.items():
            again = merged[bucket][j]
            assert part.plain.dtype == torch.float64
            assert same_bits(again.plain, part.plain) and same_bits(again.weighted, part.weighted)
            assert (again.weight, again.sq_norm, again.members) == (part.weight, part.sq_norm, part.members)
    assert part.weight != 1.0 and not torch.equal(part.weighted, part.plain)
