"""The wire format: what is counted is what is encoded, and what was encoded comes back."""

import json
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.core.codec import (
    Broadcast,
    Wire,
    cut,
    decode,
    decode_rows,
    encode,
    encode_rows,
    encoded_nbytes,
    rounded,
    rows_nbytes,
    sent,
)
from relief_ray.core.groups import WHOLE, GroupLayout, ParamGroup, Part, pack
from relief_ray.core.messages import Assignment, Receipt, StageTimes, Update, Work
from tests.toy import build

LAYOUT = build().layout
MAGIC = b"RLF1"
FORMATS = ("float32", "float16", "bfloat16", "int8")
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
        (b"PK\x03\x04rest", "expected one of"),
        (b"", "expected one of"),
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
    payload = encode(LAYOUT, selection, sent, kept=kept)
    assert len(payload) == encoded_nbytes(LAYOUT, selection, num_kept=sum(int(k.sum()) for k in kept.values()))
    (length,) = struct.unpack_from("<I", payload, 4)
    assert payload[8 : 8 + length] == encode(LAYOUT, selection, sent)[8 : 8 + length]
    values = b"".join(sent[j][mask].numpy().tobytes() for j, mask in kept.items())
    bits = b"".join(np.packbits(mask.numpy()).tobytes() for mask in kept.values())
    assert payload[8 + length :] == bits + values


@given(selections, st.sampled_from(FORMATS), st.booleans(), st.integers(0, 9))
def test_what_is_decoded_is_what_was_rounded_in_every_format(selection, form, is_sparse, seed):
    values, make = cut(LAYOUT, selection, params(seed)), torch.Generator().manual_seed(seed)
    kept = {j: torch.rand(len(x), generator=make) < 0.5 for j, x in values.items()} if is_sparse else None
    if kept is not None:
        values = {j: torch.where(kept[j], x, torch.zeros(())) for j, x in values.items()}
    num_kept = None if kept is None else sum(int(k.sum()) for k in kept.values())
    payload = encode(LAYOUT, selection, values, form, kept)
    assert len(payload) == encoded_nbytes(LAYOUT, selection, form, num_kept)
    chosen, decoded = decode(LAYOUT, payload)
    expected = rounded(LAYOUT, selection, values, form)
    assert chosen == selection
    assert all(torch.equal(decoded[j], expected[j]) and decoded[j].dtype == torch.float32 for j in selection)


def of_tensors(*tensors):
    """A layout of one group of these vectors, and its values."""
    named = [(f"t{i}", (len(t),), "weight") for i, t in enumerate(tensors)]
    layout = GroupLayout([ParamGroup(id="g", role="head", modality=None, layer=1, tensors=pack(named))])
    return layout, {"g": torch.tensor([x for t in tensors for x in t])}


TINY = torch.finfo(torch.float32).tiny


@pytest.mark.parametrize(
    ("values", "scale", "codes"),
    [
        ([0.0, 0.0, -0.0], 0.0, [0, 0, 0]),
        ([-254.0], 2.0, [-127]),
        ([127.0, 0.5, 1.5, 2.5, -0.5, -1.5], 1.0, [127, 0, 2, 2, 0, -2]),  # halves go to the even code
        ([1e-37, -1e-37, 3e-40], 0.0, [0, 0, 0]),  # s = 7.9e-40 is no normal number
        ([127 * TINY, TINY, -0.4 * TINY], TINY, [127, 1, 0]),
        ([3.0e38, -1.0], float(torch.tensor(3.0e38) / 127), [127, 0]),
    ],
)
def test_int8_by_hand(values, scale, codes):
    layout, params = of_tensors(values)
    payload = encode(layout, layout.select(), params, "int8")
    body = payload[-4 - len(codes) :]
    assert struct.unpack("<f", body[:4]) == (scale,)
    assert list(struct.unpack(f"{len(codes)}b", body[4:])) == codes
    expected = torch.tensor(codes, dtype=torch.float32) * torch.tensor(scale, dtype=torch.float32)
    assert torch.equal(rounded(layout, layout.select(), params, "int8")["g"], expected)


def test_each_tensor_of_a_group_has_a_scale_of_its_own():
    """Two LoRA factors whose values differ by 1e4: one scale for both would make the smaller one 0."""
    layout, params = of_tensors([10.0, -5.0], [1e-3, 5e-4, -1e-3])
    decoded = rounded(layout, layout.select(), params, "int8")["g"]
    assert torch.allclose(decoded, params["g"], rtol=1e-2, atol=0.0)
    scales = struct.unpack("<2f", encode(layout, layout.select(), params, "int8")[-13:-5])
    assert scales == tuple(float(torch.tensor(m) / 127) for m in (10.0, 1e-3))


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40))
def test_int8_errs_by_half_a_step_at_most(values):
    layout, params = of_tensors(values)
    decoded = rounded(layout, layout.select(), params, "int8")["g"].double()
    step = float(params["g"].abs().max() / 127)
    if step < TINY:
        assert not decoded.any()
    else:
        assert float((decoded - params["g"].double()).abs().max()) <= step / 2 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("value", "form", "message"),
    [
        (float("nan"), "int8", "group 'g': nan cannot be sent as int8"),
        (float("inf"), "float16", "group 'g': inf cannot be sent as float16"),
        (-1e39, "bfloat16", "group 'g': -inf cannot be sent as bfloat16"),  # no float32 either
        (70123.0, "float16", "group 'g': 70123 is beyond float16, whose largest value is 65504"),
        (-3.4e38, "bfloat16", "group 'g': -3.4e+38 is beyond bfloat16, whose largest value is 3.38953e+38"),
        (65504.0, "float16", ""),
        (3.4e38, "int8", ""),
    ],
)
def test_a_value_that_a_format_cannot_hold_is_named(value, form, message):
    layout, params = of_tensors([1.0, value])
    update = sent(layout, an_update(layout, params), Wire(up=form))
    assert update.refusal == message
    assert update.delta["g"] is params["g"] or not message
    broadcast = Broadcast(layout=layout, form=form)
    if message:
        with pytest.raises(FloatingPointError, match="model 'global', group 'g': "):
            broadcast({"global": params})
    else:
        assert broadcast({"global": params})["global"]["g"].isfinite().all()


def an_update(layout, delta):
    work = Work(num_windows=1, epochs=1, num_steps=1, engine="naive", loss=0.0, measured=StageTimes())
    everything = layout.select()
    task = Assignment(client=0, down=everything, train=everything, up=everything, epochs=1)
    return Update(receipt=Receipt(assignment=task, work=work, bytes_up=12, bytes_down=3), delta=delta)


@pytest.mark.parametrize("form", FORMATS)
def test_a_sent_update_is_rounded_once_and_charged_what_its_payload_has(form):
    layout, params = of_tensors([1.0, 1e-9, -3.0, 0.0], [5e-4])
    update = sent(layout, an_update(layout, params), Wire(up=form, down="float16", keeps_payload=True))
    assert torch.equal(decode(layout, update.payload)[1]["g"], update.delta["g"])
    assert update.receipt.bytes_up == 12 + len(update.payload)
    assert update.receipt.bytes_down == 3 + encoded_nbytes(layout, layout.select(), "float16")
    # 1e-9 is below half of float16's smallest number, and of int8's step
    assert update.receipt.underflow == (0.25 if form in ("float16", "int8") else 0.0)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"delta": {}}, "delta has groups [], expected those of its assignment, ['g']; send what"),
        ({"delta": {"g": torch.ones(3)}}, "delta, group 'g': torch.float32 (3,), expected float32 vectors of 4 values"),
        ({"delta": {"g": torch.ones(4, dtype=torch.float64)}}, "delta, group 'g': torch.float64 (4,), expected"),
        ({"delta": {"g": torch.ones(4), "h": torch.ones(1)}}, "delta has groups ['g', 'h'], expected those"),
        ({"kept": {"g": torch.tensor([True, False, True, False])}}, "kept, group 'g': 2 values outside are not 0"),
        ({"kept": {"g": torch.ones(3, dtype=torch.bool)}}, "kept, group 'g': found torch.bool (3,), expected a bool"),
        ({"kept": {"g": torch.ones(4, dtype=torch.int64)}}, "group 'g': found torch.int64 (4,)"),
        ({"kept": {"h": torch.ones(4, dtype=torch.bool)}}, "kept has groups ['h'], expected a mask"),
    ],
)
def test_an_update_that_does_not_match_its_assignment_is_refused_alike_in_every_format(form, changes, reason):
    """Before it is rounded, which would hide it, and before its payload is written, which has kept values alone."""
    layout, params = of_tensors([1.0, -2.0, 3.0, 4.0])
    update = replace(an_update(layout, params), **changes)
    refused = sent(layout, update, Wire(up=form, keeps_payload=True))
    assert reason in refused.refusal and not refused.payload and refused.delta is update.delta


def test_a_model_is_rounded_once_for_all_who_receive_it():
    layout, theta = of_tensors([1.0, 1.0002])
    broadcast = Broadcast(layout=layout, form="bfloat16")
    first = broadcast({"global": theta})["global"]
    assert broadcast({"global": theta, "mean": theta})["mean"] is first
    assert first["g"].tolist() == [1.0, 1.0] and theta["g"].tolist() != [1.0, 1.0]
    models = {"global": theta}
    assert Broadcast(layout=layout)(models) is models


def test_rows_come_back():
    rows = {"fusion.A.acc": torch.randn(1, 5), "deep": torch.randn(1, 2, 3)}
    decoded = decode_rows(encode_rows(rows))
    assert list(decoded) == list(rows) and all(torch.equal(decoded[name], rows[name].flatten()) for name in rows)
    assert rows_nbytes({name: row.numel() for name, row in rows.items()}) == len(encode_rows(rows))
    assert rows_nbytes({}) == 0


def test_lengths_are_those_of_the_indices():
    for group in LAYOUT:
        for part in (WHOLE, Part(rank=1), Part(rows=0.5), Part(kinds=frozenset({"lora_b"})), Part(kinds=frozenset())):
            assert sum(LAYOUT.lengths(group.id, part)) == LAYOUT.num_values({group.id: part})
