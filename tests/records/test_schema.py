from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from relief_ray.core.messages import StageTimes
from relief_ray.records.run_folder import read_rounds
from relief_ray.records.schema import WALL_FIELDS, ClientRecord, Metrics, RoundRecord, RunRecord, Totals, comparable

FLOATS = st.floats(width=64)


@given(FLOATS, FLOATS, st.integers(0, 2**60))
def test_floats_and_counts_survive_json_exactly(a, b, count):
    text = Totals(time_s=a, energy_j=b, bytes_up=count).model_dump_json()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    back = Totals.model_validate_json(text)
    assert [x.hex() for x in (back.time_s, back.energy_j)] == [x.hex() for x in (a, b)]
    assert back.bytes_up == count


def test_a_whole_record_survives_json(finished, scenario):
    for record in read_rounds(finished):
        full = record.model_copy(
            update={
                "metrics": Metrics(
                    f1=0.1 + 0.2, f1_by_client={3: 1 / 3}, confusion=(((1, 2), (3, 4)),), f1_by_subject={"101": 0.5}
                ),
                "pairwise": {"fusion.A.acc": ((0, 1, -0.25),)},
            }
        )
        assert RoundRecord.model_validate_json(full.model_dump_json()) == full
    run = scenario.make_run(budget={"deadline_s": 1 / 3})
    assert RunRecord.model_validate_json(run.model_dump_json()) == run


def test_comparable_leaves_out_the_wall_and_nothing_else(finished, scenario):
    record = read_rounds(finished)[1]
    client = replace(record.clients[0], measured_stages=StageTimes(forward_s=99.0))
    other = record.model_copy(
        update={"wall_s": 9.0, "ended_unix_s": 1.0, "moved_bytes": 5, "clients": (client, *record.clients[1:])}
    )
    assert other != record and comparable(other) == comparable(record)
    for name in RoundRecord.model_fields.keys() - WALL_FIELDS:
        changed = record.model_copy(update={name: "changed"})
        assert comparable(changed) != comparable(record), name
    lossy = replace(client, loss=math.nextafter(client.loss, 2.0))
    assert comparable(record.model_copy(update={"clients": (lossy,)})) != comparable(record)
    run = scenario.make_run(config={"created": "a user's own key"})
    assert comparable(run)["config"] == {"created": "a user's own key"}
    assert comparable(run.model_copy(update={"created": "later", "num_resumes": 4, "note": "x"})) == comparable(run)


def test_comparable_of_nan_is_equal_to_itself():
    assert comparable(Totals(time_s=math.nan)) == comparable(Totals(time_s=math.nan))
    assert comparable(Totals(time_s=math.inf)) != comparable(Totals(time_s=-math.inf))


@pytest.mark.parametrize(
    "changes",
    [
        {"unknown": 1},
        {"status": "finished"},
        {"status": "stale"},
        {"data_origin": "synthetic"},
        {"schema_version": 2},
        {"cell": None},
    ],
)
def test_wrong_fields_are_refused(scenario, changes):
    with pytest.raises(ValidationError, match=next(iter(changes))):
        scenario.make_run(**changes)


def test_records_are_frozen(scenario):
    with pytest.raises(ValidationError, match="frozen"):
        scenario.make_run().status = "failed"


def test_loss_is_the_mean_over_windows(finished):
    record = read_rounds(finished)[0]

    def clients(*rows: tuple[int, float]) -> tuple[ClientRecord, ...]:
        return tuple(replace(record.clients[0], num_windows=n, loss=x) for n, x in rows)

    assert record.model_copy(update={"clients": clients((1, 1.0), (3, 2.0))}).loss == 1.75
    assert record.model_copy(update={"clients": ()}).loss is None


def test_a_record_never_holds_a_planted_secret(scenario):
    canary = "canary-7f3a"
    uri = f"http://me:{canary}@h"
    run = scenario.make_run(
        config={"tracking": {"uri": uri, "token": canary}}, note=f"cannot reach {uri}", warnings=[uri]
    )
    assert canary not in run.model_dump_json()
    assert "http://***@h" in run.note
