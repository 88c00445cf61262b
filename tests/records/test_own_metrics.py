"""A metric from a user's file: computed where a model is tested, recorded, shown, compared; its faults are told."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from relief_ray.config.experiment import parse, read_settings
from relief_ray.core.groups import WHOLE
from relief_ray.core.messages import EvalPlan, EvalTarget
from relief_ray.experiment.reproduce import judge
from relief_ray.records.committed import condense
from relief_ray.records.identity import changed_files, other_program, why_closed
from relief_ray.records.metrics import round_scalars, summarise
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.report.claims import run_pairs
from relief_ray.report.comparison import compare
from relief_ray.report.formats.text import as_csv, markdown, plain
from relief_ray.report.frames import gain, read_cells
from relief_ray.studies.plan import Plan, load_spec
from relief_ray.support.errors import UserCodeFailed, UserError
from relief_ray.training.evaluation import confusion
from tests.conformance.cases import BASE, drive
from tests.plans import override

pytestmark = pytest.mark.usefixtures("run_cache")

KAPPA = """
def kappa(confusion):
    counts = confusion / confusion.sum()
    chance = counts.sum(0) @ counts.sum(1)
    return (counts.trace() - chance) / (1 - chance)


def undefined(confusion):
    return float("nan")
"""


def of(name, method="fedavg", **more):
    return parse({**BASE, "strategy": method, "metrics": [f"{name}:kappa", f"{name}:undefined"], **more})


def kappa_by_hand(confusion):
    """Cohen's kappa in plain numbers: agreement over what two independent raters would agree on."""
    counts = [[sum(subject[i][j] for subject in confusion) for j in range(8)] for i in range(8)]
    total = sum(map(sum, counts))
    agreed = sum(counts[i][i] for i in range(8)) / total
    chance = sum(sum(counts[i]) * sum(row[i] for row in counts) for i in range(8)) / total**2
    return (agreed - chance) / (1 - chance)


@pytest.mark.ci
def test_it_is_in_records_tables_files_claims_and_mlflow_and_changes_no_model(write, tmp_path):
    name = write(KAPPA)
    for method in ("fedavg", "fedprox", "local"):
        drive(of(name, method), tmp_path / method)
    drive(parse({**BASE, "strategy": "fedavg"}), tmp_path / "without")
    run, rounds = read_run(tmp_path / "fedavg"), read_rounds(tmp_path / "fedavg")
    last = rounds[-1].metrics
    assert last.scores == {"kappa": pytest.approx(kappa_by_hand(last.confusion))} and last.scores["kappa"] > 0.01
    assert [r.round for r in rounds if r.metrics and "kappa" in r.metrics.scores] == [2, 3], "every tested round"
    assert round_scalars(rounds[-1], run.planning_model)["kappa"] == last.scores["kappa"], "what MLflow gets"
    bare = read_rounds(tmp_path / "without")
    assert [r.model_sha256 for r in bare] == [r.model_sha256 for r in rounds]
    assert bare[-1].metrics == last.model_copy(update={"scores": {}})
    assert f"{name}.py" in run.own_sources and read_run(tmp_path / "without").own_sources == {}
    assert judge(condense(run, rounds), condense(read_run(tmp_path / "without"), bare)).answer == "equal bits"

    folders = [tmp_path / "fedavg", tmp_path / "fedprox", tmp_path / "without"]
    frame = read_cells(folders).frame
    assert frame["kappa_percent"].iloc[0] == pytest.approx(100 * last.scores["kappa"])
    assert read_cells(folders).round_frame["kappa_percent"].notna().sum() == 4
    shown = compare(folders[:2])
    expected = f"{100 * last.scores['kappa']:.1f}"
    for text in (plain(shown, 80), plain(shown), markdown(shown)):
        assert "kappa %" in text and expected in text and "undefined" not in text
    assert "kappa_percent" in as_csv(shown).splitlines()[0]
    (pair,) = run_pairs(shown, "fedprox", "fedavg", "kappa").itertuples()
    assert pair.second == pytest.approx(100 * last.scores["kappa"]) and pair.first != pair.second
    assert gain(read_cells(folders[:2]), "fedprox", figure="kappa").mean == pytest.approx(pair.first - pair.second)


def test_a_metric_that_a_committed_cell_does_not_have_is_no_difference(write, tmp_path):
    drive(of(write(KAPPA)), tmp_path / "fedavg")
    new = condense(read_run(tmp_path / "fedavg"), read_rounds(tmp_path / "fedavg"))
    old = new.model_copy(update={"metrics": new.metrics.model_copy(update={"scores": {}})})
    assert judge(old, new).answer == judge(new, old).answer == "equal bits"
    other = new.model_copy(update={"metrics": new.metrics.model_copy(update={"scores": {"kappa": 0.0}})})
    assert judge(other, new).differences == ("the last metrics differ",)


def test_of_models_of_the_clients_own_it_is_their_mean_by_hand():
    """First row by first column, all over all: 3 of 4 windows right, then 1 of 4; the canonical model has 4 of 4."""
    counts = {"global": [[4]], "client.0": [[3, 0], [1, 0]], "client.3": [[0, 3], [0, 1]]}
    matrices = {label: torch.tensor([rows]) for label, rows in counts.items()}
    targets = tuple(EvalTarget(label=f"client.{n}", client=n, keep={"head.1": WHOLE}) for n in (0, 3))
    own = {"right": lambda c: c.trace() / c.sum(), "none": lambda c: np.nan, "endless": lambda c: np.inf}
    plan = EvalPlan(canonical=EvalTarget(label="global"), clients=targets)
    assert summarise(matrices, plan, (), ["a"], own=own).scores == {"right": (3 / 4 + 1 / 4) / 2}
    one = EvalPlan(canonical=EvalTarget(label="global"), clients=targets, personal=False)
    assert summarise(matrices, one, (), ["a"], own=own).scores == {"right": 1.0}


def test_it_gets_whole_numbers_a_row_per_true_class():
    """Class 0 was taken for class 1 once, never the other way round."""
    seen = []
    plan = EvalPlan(canonical=EvalTarget(label="global"))
    counts = {"global": confusion(*map(torch.tensor, ([0, 1, 1, 0], [0, 1, 1, 1], [0, 0, 0, 0])), 1, 2)}
    own = {"look": lambda c: seen.append(c) or float(c[0, 1] - c[1, 0])}
    assert summarise(counts, plan, (), ["a"], own=own).scores == {"look": 1.0}
    assert seen[0].tolist() == [[1, 1], [0, 2]] and seen[0].dtype == np.int64


def test_paths_are_taken_like_those_of_methods(write):
    name = write(KAPPA)
    config = of(name)
    assert config.modules() == (name,) and parse(config.model_dump(mode="json")) == config
    assert config.identity()["metrics"] == [f"{name}:kappa", f"{name}:undefined"]
    assert "metrics" not in parse(BASE).identity(), "ids of runs without any stay"
    (setting,) = read_settings([f"metrics={name}.py:kappa,{name}:undefined"])
    assert parse(override(BASE, [f"metrics={setting.value}"])).metrics == config.metrics


def test_a_records_metric_is_somebody_elses_code(write, tmp_path):
    name = write(KAPPA)
    config = of(name).model_dump(mode="json")
    assert "--own-code" in why_closed(config, None)
    drive(of(name, rounds=1), tmp_path / "run")
    run = read_run(tmp_path / "run")
    Path(f"{name}.py").write_text(KAPPA + "\nCHANGED = 1\n")
    assert changed_files(run) == (f"{name}.py",) and f"{name}.py" in other_program(run)


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        (["{}:kapa"], "has no 'kapa' (did you mean 'kappa'?)"),
        (["kappa"], "expected the import path of a function"),
        (["{}:NUMBER"], "found 3, expected a function"),
        (["{}:Kind"], "expected a function"),
        (["{}:f1"], "give the function another, own_f1"),
        (["{}:accuracy"], "give the function another"),
        (["{}:kappa", "{}:kappa"], "there is a figure of the name 'kappa'"),
        ([3], "metrics"),
        ("nothing_there:kappa", "no module 'nothing_there'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_computed(write, metrics, words):
    name = write(KAPPA + "\nNUMBER = 3\n\n\nclass Kind:\n    pass\n\n\ndef f1(c):\n    return 1\n\n\naccuracy = f1\n")
    filled = (
        [str(m).format(name) if isinstance(m, str) else m for m in metrics] if isinstance(metrics, list) else metrics
    )
    with pytest.raises(UserError, match="metrics") as error:
        parse({**BASE, "metrics": filled})
    assert words in str(error.value)


def test_a_fault_is_told_before_the_first_round_with_its_line(write, tmp_path):
    name = write("def broken(confusion):\n    return confusion[99, 99]\n\n\ndef words(confusion):\n    return 'much'\n")
    more = write("def percent(confusion):\n    return 50.0\n")
    with pytest.raises(UserCodeFailed, match=r"metric 'percent' returned 50.0, expected a share from -1 to 1: 0.5 is"):
        drive(parse({**BASE, "metrics": [f"{more}:percent"]}), tmp_path / "percent")
    with pytest.raises(UserCodeFailed, match=r"metric 'words' returned 'much', expected a number .*line 5, in words"):
        drive(parse({**BASE, "metrics": [f"{name}:words"]}), tmp_path / "words")
    with pytest.raises(IndexError):
        drive(parse({**BASE, "metrics": [f"{name}:broken"]}), tmp_path / "broken")
    assert not (tmp_path / "broken" / "rounds.jsonl").exists()


def test_a_claim_names_it_where_the_study_has_it(write, tmp_path):
    name, file = write(KAPPA), tmp_path / "claims.yaml"
    file.write_text("claims:\n  - {first: relief, second: fedavg, figure: kappa}\n")
    with pytest.raises(UserError, match=r"claims.yaml: figure 'kappa': unknown.*expected one of f1, "):
        Plan.of(replace(load_spec("quick"), claims=str(file)), tmp_path / "out")
    plan = Plan.of(
        replace(load_spec("quick"), claims=str(file)), tmp_path / "out", read_settings([f"metrics=[{name}:kappa]"])
    )
    assert plan.cells[0].config.metrics == (f"{name}:kappa",)
