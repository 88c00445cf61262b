"""The table of what devices measured: beside the simulation, never mixed with it, n/a where nothing was measured."""

import dataclasses

import pytest

from relief_ray.records.schema import PhysicalRecord
from relief_ray.report.build import build

DEVICE = {"host": "board", "device": "cuda: Orin", "power_mode": "15W"}


@pytest.fixture
def measured(make, put_on):
    """A run of two rounds whose devices 0 (type A) and 2 (type C) were measured, the latter without power."""

    def of(label="fedavg"):
        run = put_on(make(label), fleet={"preset": "testbed"}, data={"name": "pamap2"})
        rounds = tuple(
            record.model_copy(
                update={
                    "physical": {
                        0: PhysicalRecord(**DEVICE, down_s=0.2 * i, wait_s=2.0, energy_j=10.0, throttled=i == 2),
                        2: PhysicalRecord(host="b", device="cpu", forward_s=3.0, backward_s=2.0, optimizer_s=1.0),
                    }
                }
            )
            for i, record in enumerate(run.rounds, 1)
        )
        return dataclasses.replace(run, rounds=rounds)

    return of


def sheet(document):
    return next((t for t in document.tables if t.slug == "e1-measured"), None)


def test_measured_and_simulated_stand_in_columns_of_their_own(measured, inventory_of):
    table = sheet(build(inventory_of([measured()])))
    rows = {row.name: dict(zip(table.head[1:], row.cells, strict=True)) for row in table.rows}
    assert list(rows) == ["fedavg, type A", "fedavg, type C"]
    first, last = rows["fedavg, type A"], rows["fedavg, type C"]
    clock = next(h for h in table.head if h.startswith("down, s, by"))
    assert (first["down, s"].text, first["down, s"].origin) == ("0.30", "measured"), "mean of 0.2 and 0.4"
    # The clock's round of 2 s: a quarter of it is download.
    assert (first[clock].text, first[clock].origin) == ("0.50", "simulated")
    assert (first["J"].text, first["slowed, % of rounds"].text, first["boards"].text) == (
        "10.0",
        "50",
        "cuda: Orin, 15W",
    )
    assert (last["compute, s"].text, last["boards"].text) == ("6.00", "cpu")
    for head in ("down, s", "up, s", "wait, s", "J", "slowed, % of rounds"):
        assert last[head].text == "n/a" and last[head].numbers["n"] == 0, head
    assert first["compute, s"].text == "n/a", "stages that were not told"


def test_runs_that_were_not_measured_have_no_such_table(make, put_on, inventory_of):
    run = put_on(make("fedavg"), fleet={"preset": "testbed"}, data={"name": "pamap2"})
    assert sheet(build(inventory_of([run]))) is None


def test_methods_keep_their_measurements_apart(measured, make, put_on, inventory_of):
    other = put_on(make("v1"), fleet={"preset": "testbed"}, data={"name": "pamap2"})
    table = sheet(build(inventory_of([measured(), other])))
    assert [row.name for row in table.rows] == ["fedavg, type A", "fedavg, type C"], "v1 was simulated only"
