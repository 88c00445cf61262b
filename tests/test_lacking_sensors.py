"""A person without a sensor, from the data set's description to cohorts, training, evaluation, record and report.

The lab of `tests/loaders` has four people with sensors on wrist (2 channels), hip (1) and ankle (2). Person 3 lacks the
one on the hip.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.config.experiment import parse
from relief_ray.conformance.datasets import check_loader
from relief_ray.conformance.runner import PROBLEM
from relief_ray.core.groups import GroupLayout, ParamGroup, pack
from relief_ray.core.messages import WeightedSum
from relief_ray.data import DataConfig, FederatedData, federate, load_dataset, open_dataset
from relief_ray.data.dataset import PARSER_VERSION, cache_key
from relief_ray.data.describe import describe
from relief_ray.data.partition import available, people_of
from relief_ray.data.registry import get_spec, load_own
from relief_ray.devices.fleet import FleetConfig, build_fleet
from relief_ray.experiment.experiment import run_cell as drive
from relief_ray.experiment.setup import prepare
from relief_ray.records.facts import data_facts
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.report.comparison import by_setting
from relief_ray.report.runs import take_inventory
from relief_ray.report.tables.overview import data_tables
from relief_ray.server import aggregation as agg
from relief_ray.support.errors import UserError
from relief_ray.support.files import sha256_json
from relief_ray.training.evaluation import CHUNK, predict
from tests.loaders import write_lab
from tests.own import Write
from tests.toy import reduced_of, task_of, update_of
from tests.training.scenario import SHAPE, build, windows

pytestmark = pytest.mark.usefixtures("run_cache")

# What stands in the hip's column of person 3 decides nothing.
LACKING = """
def mine(spec, members, path, subject):
    made = parse(spec, members, path, subject)
    if subject == 3:
        made.signal[:, 2] = {value}
    return made
MINE = replace(GOOD, spec=replace(SPEC, lacks={lacks}), parse=mine)
"""
NAMES = ("wrist", "hip", "ankle")
ALL = {kind: {"sensors": "all"} for kind in "ABC"}
Lab = Callable[..., str]


@pytest.fixture
def lab(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    def body(value: str = "np.nan", lacks: str = '{3: ("hip",)}') -> str:
        return write_lab(write, tmp_path, monkeypatch, LACKING.format(value=value, lacks=lacks))

    return body


def data_of(path: str, **values: object) -> FederatedData:
    config = DataConfig.model_validate({"name": path, "stride_s": 2.0, **values})
    dataset = open_dataset(config)
    return federate(dataset, config, available(config, config.num_clients or len(config.subject_ids())))


def values_of(path: str, strategy: str = "relief", owned: object = ALL, **data: object) -> dict[str, object]:
    values = {**PROBLEM, "data": {"name": path, "stride_s": 2.0, **data}, "fleet": {"types": owned}}
    return {**values, "strategy": strategy, "participation": 1.0, "rounds": 2}


# Cohorts --------------------------------------------------------------------------------------------------------------


def test_a_client_has_its_types_sensors_but_for_what_its_subject_lacks(lab: Lab) -> None:
    """Eight clients, two a person: 4 and 5 are those of person 3, of type C as 6 and 7."""
    config = DataConfig(name=lab(), num_clients=8)
    assert people_of(config, 8)[3:7] == (2, 3, 3, 4)
    two = FleetConfig(types={"B": {"sensors": ("wrist", "hip")}, "C": {"sensors": ("hip", "ankle"), "share": 2}})
    fleet, _ = build_fleet(two, NAMES, people_of(config, 8), lacks={3: ("hip",)})
    assert [c.modalities for c in fleet.clients] == [
        *[NAMES] * 2,
        *[("wrist", "hip")] * 2,
        *[("ankle",)] * 2,
        *[("hip", "ankle")] * 2,
    ]
    assert fleet.cohort("hip") == (0, 1, 2, 3, 6, 7)
    assert available(config, 8) == [NAMES] * 4 + [("wrist", "ankle")] * 2 + [NAMES] * 2


LAYOUT = GroupLayout(
    ParamGroup(id=f"A.{m}", role="fusion_a", modality=m, layer=None, tensors=pack([("w", (1, 1), "weight")]))
    for m in NAMES
)
UNIFORM = WeightedSum(weight=agg.uniform, bucket=agg.one_bucket)
SENSORS = st.sets(st.sampled_from(NAMES), min_size=1)
ABSENT = st.dictionaries(st.integers(0, 7), st.sets(st.sampled_from(NAMES), min_size=1, max_size=2))


@given(st.tuples(SENSORS, SENSORS), ABSENT, st.integers(0, 7))
def test_a_cohort_never_holds_a_client_whose_subject_lacks_its_sensor(types, absent, rotation) -> None:
    """A has all. Client n sends n for each group that it can train: the step is the mean of those with the sensor."""
    owned = {"A": NAMES, **dict(zip("BC", (tuple(sensors) for sensors in types), strict=True))}
    roles = np.roll(list("AAABBBCC"), rotation).tolist()
    having = [({*NAMES} if r == "A" else {*owned[r]}) - absent.get(n, set()) for n, r in enumerate(roles)]
    table = {name: {"sensors": sensors} for name, sensors in owned.items()}
    config, lacks = FleetConfig(types=table, rotation=rotation), {n: tuple(a) for n, a in absent.items()}
    if not all(having) or {*NAMES} != set().union(*having):
        with pytest.raises(UserError, match=r"client-\d has no sensor|no client owns modality"):
            build_fleet(config, NAMES, range(8), "dsa", lacks)
        return
    fleet, _ = build_fleet(config, NAMES, range(8), "dsa", lacks)
    assert [set(c.modalities) for c in fleet.clients] == having
    tasks = [task_of(LAYOUT, c.id, LAYOUT.accessible(c.modalities)) for c in fleet.clients]
    sent = [update_of(task, {j: torch.tensor([float(task.client)]) for j in task.up}) for task in tasks]
    step = agg.mean_step(reduced_of(sent, UNIFORM, LAYOUT, fleet).sums["global"], agg.over_members, LAYOUT)
    for name in NAMES:
        cohort = [n for n, sensors in enumerate(having) if name in sensors]
        assert list(fleet.cohort(name)) == cohort and step[f"A.{name}"].item() == pytest.approx(np.mean(cohort))


# Refusals -------------------------------------------------------------------------------------------------------------


def test_a_client_without_any_sensor_is_refused_by_name(lab: Lab) -> None:
    """Person 3 is client 2, of type C."""
    config = parse(values_of(lab(), owned={**ALL, "C": {"sensors": "hip", "share": 2}}))
    said = (
        r"client-2 has no sensor: clients of type C have hip \(fleet\.types\.C\.sensors\), and its subject 3 lacks hip "
        r"\(DatasetSpec\.lacks\); give type C a sensor that the subject has.*data\.subjects"
    )
    with pytest.raises(UserError, match=said):
        prepare(config)
    with pytest.raises(UserError, match=r"no client owns modality 'hip' .*; lacking to subjects 1 and 2\); give"):
        prepare(
            parse(
                values_of(
                    lab("1.0", '{1: ("hip",), 2: ("hip",)}'),
                    owned={**ALL, "C": {"sensors": ["wrist", "ankle"], "share": 2}},
                )
            )
        )


@pytest.mark.parametrize("partition", ["dirichlet", "quantity"])
def test_partitions_that_mix_people_are_refused_but_not_for_those_who_lack_nothing(partition: str, lab: Lab) -> None:
    path = lab()
    said = rf"data\.partition={partition} mixes people in a client, but subject 3 lacks hip.*data\.subjects=\[1, 2, 4\]"
    with pytest.raises(UserError, match=said):
        prepare(parse(values_of(path, partition=partition, num_clients=2)))
    assert len(data_of(path, partition=partition, num_clients=2, subjects=[1, 2, 4]).clients) == 2


def test_one_client_with_all_sensors_and_everybody_is_refused(lab: Lab) -> None:
    path = lab()
    with pytest.raises(UserError, match=r"strategy central: .*\(subject 3, DatasetSpec\.lacks\).*=\[1, 2, 4\]"):
        prepare(parse(values_of(path, "central")))
    prepare(parse(values_of(path, "central", subjects=[1, 2, 4])))


def test_windows_cannot_be_asked_for_with_a_lacking_sensor(lab: Lab) -> None:
    config = DataConfig(name=lab())
    with pytest.raises(UserError, match="client 2: has hip, which its subject 3 lacks"):
        federate(open_dataset(config), config, [NAMES] * 4)


# Readings -------------------------------------------------------------------------------------------------------------


def test_no_reading_of_a_lacking_sensor_is_used(lab: Lab) -> None:
    """NaN in the cache, zero in standardised windows, and no part of any mean."""
    path = lab("1e6")
    data, dataset = data_of(path), load_dataset(path)
    signal, others = dataset.signal(), data_of(path, subjects=[1, 2, 4])
    mine = slice(2 * len(signal) // 4, 3 * len(signal) // 4)
    assert np.isnan(signal[mine, 2]).all() and np.isnan(signal).sum() == len(signal) // 4
    assert (data.test.mean[2], data.test.std[2]) == (others.test.mean[2], others.test.std[2])
    assert data.test.mean[0] != others.test.mean[0]
    rows, block = data.test.subjects == 2, data.test.load()
    assert rows.any() and (block["hip"][rows] == 0).all() and (block["hip"][~rows] != 0).any()
    assert all(np.isfinite(values).all() for values in block.values())
    ((lacked, where),) = data.test.lacking()
    assert lacked == {"hip"} and (where == rows).all() and not others.test.lacking()
    assert set(data.test.complete().subjects) == {0, 1, 3} and len(others.test.complete()) == len(others.test)


def test_the_digest_covers_who_lacks_what_and_nobody_changes_no_key(lab: Lab) -> None:
    spec = get_spec("dsa_mini")
    keys = [cache_key(replace(spec, lacks=lacks), "raw") for lacks in ({}, {3: ("mag",)}, {4: ("mag",)})]
    assert len(set(keys)) == 3
    described = {"name": "dsa_mini", "rate_hz": 25, "modalities": [["acc", 3], ["gyro", 3], ["mag", 3]]}
    described |= {"labels": list(spec.labels), "subjects": list(spec.subjects), "units": list(spec.units)}
    assert keys[0] == sha256_json({"source": "raw", "parser": PARSER_VERSION, "spec": described})
    assert load_dataset(lab()).digest != load_dataset(lab(lacks="{}", value="0")).digest


def test_nan_is_refused_with_this_remedy_and_taken_with_it(lab: Lab) -> None:
    with pytest.raises(UserError, match=r'(?s)finite: subject 3: hip has 1300 .*lacks=\{3: \("gyro",\)\}'):
        load_dataset(lab(lacks="{}"))
    verdicts = list(check_loader(load_own(lab()), {}))
    assert {v.status for v in verdicts} == {"kept"}, verdicts


@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
def test_windows_are_predicted_without_what_their_subject_lacks(missing: str) -> None:
    """More windows than a chunk; every third one lacks hr, every fifth acc and hr. By hand: predicted by themselves."""
    raw = {m: 100 * x for m, x in windows(CHUNK + 40)[0].items()}
    num, backbone = CHUNK + 40, build()
    masks = [frozenset(SHAPE.modalities), frozenset({"hr"}), frozenset({"acc", "gyro"})]
    third, fifth = torch.arange(num) % 3 == 0, torch.arange(num) % 3 + 3 * (torch.arange(num) % 5) == 1
    lacking = [(frozenset({"hr"}), third), (frozenset({"acc", "hr"}), fifth)]
    mixed = predict(backbone, raw, masks, missing, None, lacking)
    plain = predict(backbone, raw, masks, missing)
    for mask in masks:
        assert torch.equal(mixed[mask][~third & ~fifth], plain[mask][~third & ~fifth])
        for lacked, rows in lacking:
            alone = predict(backbone, {m: x[rows] for m, x in raw.items()}, [mask - lacked], missing)[mask - lacked]
            assert torch.equal(mixed[mask][rows], alone)
    assert not torch.equal(mixed[masks[0]], plain[masks[0]])


# Runs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.ci
@pytest.mark.parametrize("strategy", ["relief", "fedavg"])
def test_what_stands_in_a_lacking_column_changes_no_bit_of_a_run(strategy: str, lab: Lab, tmp_path: Path) -> None:
    results = []
    for number, value in enumerate(("np.nan", "0", "np.arange(len(made.signal)) ** 2")):
        drive(parse(values_of(lab(value), strategy)), tmp_path / f"run{number}")
        results.append([(r.model_sha256, r.metrics) for r in read_rounds(tmp_path / f"run{number}")])
    assert results[0] == results[1] == results[2]


def test_a_run_end_to_end(lab: Lab, tmp_path: Path) -> None:
    """Client 2 never trains the hip's encoder nor its block; the other three do. All people's windows are tested."""
    drive(parse(values_of(lab())), tmp_path / "run")
    rounds, run = read_rounds(tmp_path / "run"), read_run(tmp_path / "run")
    trained = {n: {j for r in rounds for c in r.clients if c.client == n for j in c.trained} for n in range(4)}
    hip = {n: {j for j in groups if "hip" in j} for n, groups in trained.items()}
    assert trained[2] and not hip[2] and all("fusion.A.hip" in hip[n] for n in (0, 1, 3))
    assert any("encoder.hip" in j for n in (0, 1, 3) for j in hip[n])
    assert [c["modalities"] for c in run.fleet["clients"]][2] == ["wrist", "ankle"]
    assert run.coverage["lacking"] == {"3": ["hip"]}
    assert "subject 3 lacks hip: its test windows count, and are read with that missing" in run.data_warnings
    metrics = rounds[-1].metrics
    assert metrics is not None and set(metrics.f1_by_subject) == {"1", "2", "3", "4"}
    facts = data_facts(run)
    assert facts.lacking == (("3", ("hip",)),) and facts.test == metrics.num_windows


def test_a_held_out_person_without_a_sensor_is_tested(lab: Lab, tmp_path: Path) -> None:
    """Fold 1 tests persons 3 and 4; of three sensors in all, person 3's windows rest on two."""
    setup = prepare(parse(values_of(lab(), split="held_out_subject", fold=1)))
    assert [c.modalities for c in setup.fleet.clients] == [NAMES] * 2
    assert setup.data_warnings[:1] == ("subject 3 lacks hip: its test windows count, and are read with that missing",)
    assert not [t for t in prepare(parse(values_of(lab(), split="held_out_subject"))).data_warnings if "lacks" in t]


def test_the_report_says_who_lacks_what(lab: Lab, tmp_path: Path) -> None:
    drive(parse(values_of(lab())), tmp_path / "runs" / "a")
    (experiment,) = by_setting(take_inventory([tmp_path / "runs"]))
    table = data_tables(experiment, "e")[1]
    assert table.caption.endswith(". Subject 3 lacks hip.")
    assert [[c.text for c in row.cells][:3] for row in table.rows][2] == ["3", "B", "wrist + ankle"]


# Still for one person -------------------------------------------------------------------------------------------------


def test_a_channel_that_is_still_for_one_person_is_named_with_its_remedy(lab: Lab) -> None:
    path = lab("7.0", lacks="{}")
    config = DataConfig(name=path, stride_s=2.0)
    said = "hip of subject 3: column 2 is 7 in all its bouts; if that person has no hip, say so in a DatasetSpec:"
    assert describe(open_dataset(config), config)["warnings"] == [f"{said} lacks={{3: ('hip',)}}"]
    for where in (lab("7.0"), lab("np.random.default_rng(0).normal(size=len(made.signal))", lacks="{}")):
        config = DataConfig(name=where, stride_s=2.0)
        assert not [t for t in describe(open_dataset(config), config)["warnings"] if "in all" in t]
