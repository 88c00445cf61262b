"""What reads a run's record needs none of its data; what needs them names the folder that had them."""

import shutil

import pytest
from typer.testing import CliRunner

import relief_ray as rr
from actors.cli.main import app
from relief_ray.config.experiment import parse
from relief_ray.experiment.setup import prepare
from relief_ray.studies.loop import check_reusable
from relief_ray.studies.plan import Plan
from relief_ray.studies.what_if import recorded_model
from relief_ray.support.errors import UserError
from tests.conformance.cases import BASE, drive, strategy_values
from tests.loaders import write_lab

FLEET = {"types": {"B": {"sensors": ["wrist", "ankle"]}, "C": {"sensors": "wrist"}}}


def same(with_data, without):
    return (
        with_data.fleet == without.fleet
        and (with_data.config.strategy.pooled or with_data.reference == without.fedavg_reference())
        and with_data.types == without.types
        and with_data.layout.ids == without.layout.ids
    )


@pytest.fixture
def runs(write, tmp_path, monkeypatch):
    path = write_lab(write, tmp_path, monkeypatch)
    monkeypatch.setenv("RELIEF_CACHE", str(tmp_path / "cache"))
    for method in ("relief", "central"):
        values = {"strategy": strategy_values(method), "data": {"name": path, "stride_s": 2.0, "window_s": 2.0}}
        config = parse({**BASE, **values, "fleet": BASE["fleet"] | FLEET})
        drive(config, tmp_path / "runs" / method)
        assert same(prepare(config), recorded_model(tmp_path / "runs" / method)[1])
    return tmp_path / "runs"


@pytest.mark.ci
def test_reasons_clients_tables_and_pages_need_no_data(runs, tmp_path, monkeypatch):
    def seen():
        study = rr.load(runs)
        run = study.run("relief")
        said = str(run.explain(round=2, client=3)), str(study.run("central").explain(round=1, client=0))
        return said, run.clients.to_csv(), study.run("central").clients.to_csv(), str(study.table())

    before = seen()
    assert "windows of subject 4" in before[0][0] and "says the same" in before[0][0], before[0][0]
    assert "leaves nothing to explain" in before[0][1] and "wrist, hip, ankle" in before[2]
    shutil.rmtree(tmp_path / "lab")
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.delenv("RELIEF_DATA")
    assert seen() == before
    commands = (
        ("explain", runs / "relief", "--round", 2, "--client", 3, "--own-code"),
        ("compare", runs / "relief", runs / "central"), ("report", runs, "--out", tmp_path / "page"),
        ("fleet", "whatif", runs / "relief", "--epochs", 5, "--own-code"),
    )  # fmt: skip
    for words in commands:
        done = CliRunner().invoke(app, list(map(str, words)))
        assert done.exit_code == 0, (words, done.output, done.exception)
    words = ["model", "evaluate", str(runs / "relief"), "--own-code"]
    done = CliRunner().invoke(app, words)
    said = f"{runs / 'relief'} was computed from {tmp_path / 'lab'}"
    assert done.exit_code != 0 and said in " ".join(done.output.split()), done.output
    with pytest.raises(UserError, match=f"central was computed from {tmp_path / 'lab'}$"):
        check_reusable(Plan.read(runs / "central").look()[0])
