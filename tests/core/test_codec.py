"""The wire format: what is counted is what is encoded, and what was encoded comes back."""

import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.core.codec import (
    MAGIC,
    cut,
    decode,
    encode,
    encode_sparse,
    encoded_nbytes,
    sparse_nbytes,
)
from relief_ray.core.groups import WHOLE, GroupLayout, ParamGroup, Part, pack
from tests.toy import build

LAYOUT = build().layout
KINDS = ("weight", "bias", "lora_a", "lora_b")
selections = st.dictionaries(
    st.sampled_from(LAYOUT.ids),
    st.builds(
        Part,
        kinds=st.one_of(st.none(), st.frozensets(st.sampled_from(KINDS))),
        rank=st.one_of(st.none(), st.integers(0, 3)),
        rows=st.one_of(st.none(), st.floats(0.1, 1.0)),
    ),
)


def params(seed=0):
    make = torch.Generator().manual_seed(seed)
    return {g.id: torch.randn(g.numel, generator=make) for g in LAYOUT}


@given(selections, st.integers(0, 9))
def test_round_trip_and_announced_length(selection, seed):
    sent = cut(LAYOUT, selection, params(seed))
    payload = encode(LAYOUT, selection, sent)
    assert len(payload) == encoded_nbytes(LAYOUT, selection)
    decoded, values = decode(LAYOUT, payload)
    assert decoded == selection and list(decoded) == list(selection)
    assert all(torch.equal(values[j], sent[j]) for j in selection)
    assert all(v.dtype == torch.float32 for v in values.values())


def test_values_are_little_endian_float32_behind_a_json_header():
    layout = GroupLayout(
        [ParamGroup(id="g", role="head", modality=None, layer=1, tensors=pack([("w", (2,), "weight")]))]
    )
    payload = encode(layout, layout.select(), {"g": torch.tensor([1.0, -2.5])})
    (length,) = struct.unpack("<I", payload[4:8])
    assert payload[:4] == b"RLF1"
    assert json.loads(payload[8 : 8 + length]) == [["g", None, None, 2]]
    assert payload[8 + length :] == struct.pack("<2f", 1.0, -2.5)


def test_extreme_values_survive():
    values = torch.tensor([0.0, -0.0, 1e-45, 3.4e38, float("inf"), -float("inf"), float("nan")])
    layout = GroupLayout(
        [ParamGroup(id="g", role="head", modality=None, layer=1, tensors=pack([("w", (7,), "weight")]))]
    )
    _, decoded = decode(layout, encode(layout, layout.select(), {"g": values}))
    assert torch.equal(decoded["g"].view(torch.int32), values.view(torch.int32))


def test_bytes_of_a_part_are_those_of_its_values():
    """FedSA-LoRA's saving: sending A alone costs four bytes per value of A, and a header."""
    both, only_a = LAYOUT.select(), LAYOUT.select(part=Part(kinds=frozenset({"lora_a"})))
    saved = LAYOUT.num_values(both) - LAYOUT.num_values(only_a)
    headers = [struct.unpack("<I", encode(LAYOUT, s, cut(LAYOUT, s, params()))[4:8])[0] for s in (both, only_a)]
    assert encoded_nbytes(LAYOUT, both) - encoded_nbytes(LAYOUT, only_a) == 4 * saved + headers[0] - headers[1]


def test_cut_returns_whole_groups_themselves_and_parts_by_index():
    theta = params()
    parts = cut(LAYOUT, {"encoder.acc.1": Part(kinds=frozenset({"lora_b"})), "head.1": WHOLE}, theta)
    assert parts["head.1"] is theta["head.1"]
    spec = LAYOUT["encoder.acc.1"].tensors[1]
    assert spec.kind == "lora_b"
    assert torch.equal(parts["encoder.acc.1"], theta["encoder.acc.1"][spec.offset :])


def good_payload():
    selection = LAYOUT.select(["head.1", "encoder.hr.1"])
    return encode(LAYOUT, selection, cut(LAYOUT, selection, params()))


def with_header(rows, body=b""):
    header = json.dumps(rows).encode()
    return MAGIC + struct.pack("<I", len(header)) + header + body


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"PK\x03\x04rest", "expected b'RLF1'"),
        (b"", "expected b'RLF1'"),
        (MAGIC, "header cannot be read"),
        (MAGIC + struct.pack("<I", 9) + b"[]", "holds -7 bytes"),
        (with_header([["encoder.acc.9", None, None, 0]]), "unknown groups"),
        (with_header([["head.1", None, None, 18], ["head.1", None, None, 18]]), "named twice"),
        (with_header([["head.1", None, None, 17]], bytes(68)), "counts are not those of the layout"),
        (with_header([["head.1", None, None, 18]], bytes(71)), "holds 71 bytes of values, its header announces 72"),
        (with_header({"head.1": 18}), "header cannot be read"),
        (with_header([["head.1", 5, None, 18]]), "header cannot be read"),
        (with_header([[["head.1"], None, None, 18]]), "header cannot be read"),
        (MAGIC + struct.pack("<I", 2) + b"\xff\xfe", "header cannot be read"),
    ],
)
def test_what_the_codec_did_not_write_is_refused(payload, message):
    with pytest.raises(ValueError, match=message):
        decode(LAYOUT, payload)


def test_every_truncation_and_every_extension_is_refused():
    payload = good_payload()
    for length in range(len(payload)):
        with pytest.raises(ValueError, match="payload"):
            decode(LAYOUT, payload[:length])
    with pytest.raises(ValueError, match="payload"):
        decode(LAYOUT, payload + b"\0")


@given(st.data())
def test_a_flipped_header_byte_never_gives_another_selection_silently(data):
    """Either it is refused, or it still reads as a payload of exactly the announced length."""
    payload = bytearray(good_payload())
    (length,) = struct.unpack("<I", payload[4:8])
    position = data.draw(st.integers(0, 7 + length))
    payload[position] ^= data.draw(st.integers(1, 255))
    try:
        selection, values = decode(LAYOUT, bytes(payload))
    except ValueError:
        return
    assert all(values[j].shape == (LAYOUT.num_values({j: part}),) for j, part in selection.items())
    assert set(selection) <= set(LAYOUT.ids)


@given(selections, st.integers(0, 9))
def test_a_sparse_payload_has_a_bit_for_each_value_and_then_those_that_are_kept(selection, seed):
    sent, make = cut(LAYOUT, selection, params(seed)), torch.Generator().manual_seed(seed)
    kept = {j: torch.rand(len(x), generator=make) < 0.5 for j, x in sent.items()}
    payload = encode_sparse(LAYOUT, selection, sent, kept)
    assert len(payload) == sparse_nbytes(LAYOUT, selection, sum(int(k.sum()) for k in kept.values()))
    (length,) = struct.unpack_from("<I", payload, 4)
    assert payload[8 : 8 + length] == encode(LAYOUT, selection, sent)[8 : 8 + length]
    values = b"".join(sent[j][mask].numpy().tobytes() for j, mask in kept.items())
    bits = b"".join(np.packbits(mask.numpy()).tobytes() for mask in kept.values())
    assert payload[8 + length :] == bits + values


def test_a_sparse_payload_is_not_taken_for_a_whole_one():
    sent = params()
    payload = encode_sparse(LAYOUT, LAYOUT.select(), sent, {j: x > 0 for j, x in sent.items()})
    with pytest.raises(ValueError, match="payload starts with"):
        decode(LAYOUT, payload)
