from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.core.groups import WHOLE, Part
from relief_ray.experiment.recording import MAX_STAT_VALUES, _stat
from relief_ray.records.run_folder import read_rounds
from relief_ray.records.schema import Totals, selection, tokens

KINDS = st.none() | st.frozensets(st.sampled_from(["weight", "bias", "lora_a", "lora_b"]))
ROWS = st.none() | st.floats(0.0, 1.0, exclude_min=True)
PARTS = st.builds(Part, kinds=KINDS, rank=st.none() | st.integers(0, 64), rows=ROWS)
IDS = st.from_regex(r"[a-z]+(\.[A-Za-z0-9_]+){0,2}", fullmatch=True)


@given(st.dictionaries(IDS, PARTS, max_size=6))
def test_selections_travel_as_text(chosen):
    assert selection(tokens(chosen)) == chosen
    assert list(selection(tokens(chosen))) == list(chosen)


def test_tokens_are_readable():
    part = Part(kinds=frozenset({"lora_b", "lora_a"}), rank=4)
    assert tokens({"fusion.B": WHOLE, "encoder.acc.0": part}) == ("fusion.B", "encoder.acc.0[lora_a,lora_b;r4]")
    assert tokens({"head.1": Part(rows=0.75)}) == ("head.1[;;o0.75]",)


@pytest.mark.parametrize("text", ["", "a[", "a[;r]", "a[lora_c;]", "a[weight;r4]b", "a[;rx]", "a[;;o]", "a[;;ox]"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="expected group or group"):
        selection((text,))


def test_a_round_is_recorded_as_it_happened(finished):
    record = read_rounds(finished)[2]
    client = record.clients[1]
    assert (record.round, record.phase, record.participants, record.rejected) == (3, "train", (0, 1), {2: "too late"})
    assert client.trained == client.uploaded == ("fusion.A.acc", "fusion.B[lora_a;r2]")
    assert (client.client, client.num_windows, client.bytes_up, client.bytes_down) == (1, 11, 41, 100)
    assert (client.loss, client.measured_stages.forward_s, client.args) == (1 / 3, 0.3, {"mu": 0.1})
    assert client.stats["importance"].values == tuple(torch.tensor([0.1, 0.2]).tolist())
    assert (client.stats["large"].values, client.stats["large"].mean, client.stats["large"].shape) == ((), 49.5, (100,))
    cost = record.costs["split"]
    assert (cost.round_s, cost.energy_j, cost.clients[1].wait_s, cost.clients[0].times.forward_s) == (
        3.5,
        15.0,
        0.25,
        1.5,
    )


def test_derived_figures_are_recorded(finished):
    record = read_rounds(finished)[2]
    assert record.speedup == 3.0 / 3.5 and record.fedavg == {}
    assert record.trained_fraction == (5 + 2) / 10, "all of one group and two ranks of the other, of ten values"
    assert record.d_bar.keys() == {"fusion.A.acc", "fusion.B"} and record.deadline_s is None


def test_totals_add_up_from_the_first_round_on(finished):
    totals = [r.totals["split"] for r in read_rounds(finished)]
    assert totals == [
        Totals(time_s=t, energy_j=15.0 * n, bytes_up=81 * n, bytes_down=200 * n)
        for n, t in zip(range(1, 5), (1.5, 4.0, 7.5, 12.0), strict=True)
    ]


def test_the_hash_is_of_the_new_state(scenario):
    store = scenario.CheckpointStateStore()
    results = [scenario.next_round(scenario.first_state(), store, r) for r in (1, 2)]
    hashes = [scenario.recorded(x, 1, {}).model_sha256 for x in results]
    assert len(set(hashes)) == 2


@pytest.mark.parametrize("num_values", [0, 1, MAX_STAT_VALUES, MAX_STAT_VALUES + 1])
def test_small_statistics_are_whole_and_large_ones_summarised(num_values):
    stat = _stat(torch.ones(num_values, dtype=torch.int64))
    assert stat.mean == (1.0 if num_values else 0.0)
    assert stat.values == ((1.0,) * num_values if num_values <= MAX_STAT_VALUES else ())
