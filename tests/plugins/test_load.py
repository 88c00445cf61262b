"""A user's own strategy by import path: found, checked, stored, recognised by its sources."""

import io
import json
import sys
from pathlib import Path

import pytest
import torch
from pydantic import model_validator

from actors.commands.config import explain_command
from actors.commands.fleet import show
from actors.commands.results import compare_command
from relief_ray.config.experiment import ExperimentConfig, parse
from relief_ray.core.client import LocalStep
from relief_ray.experiment.lifecycle import reopen
from relief_ray.plugins.blame import text_of
from relief_ray.plugins.load import digests, is_own, load, path_of, sources
from relief_ray.records.committed import condense, write_committed
from relief_ray.records.identity import other_program
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.report.build import build
from relief_ray.report.comparison import compare
from relief_ray.report.formats.text import as_json
from relief_ray.report.frames import read_cells
from relief_ray.report.remarks import remarks
from relief_ray.report.runs import load_runs, take_inventory, variant_names
from relief_ray.strategies import about_of, facts_of
from relief_ray.strategies.fedavg import FedAvg
from relief_ray.support.errors import UserError
from tests.conformance.cases import BASE, after_rounds, drive, outcome
from tests.own import METHOD
from tests.plans import cells_of, override, planned, typed
from tune_configs.registry import load_grid

pytestmark = pytest.mark.usefixtures("run_cache")


@pytest.fixture
def as_torch_is():
    yield
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)


def with_strategy(strategy, **more):
    return parse({**BASE, "strategy": strategy, **more})


def test_a_strategy_by_import_path_with_a_field_of_its_own(write):
    path = f"{write(METHOD)}:Mine"
    values = override(BASE, [f"strategy={path}", "strategy.alpha=0.25"])
    config = parse(values)
    assert config.strategy.model_dump() == {"weighting": "uniform", "alpha": 0.25}
    assert config.label() == path == path_of(type(config.strategy)) and is_own(type(config.strategy))
    stored = json.loads(config.model_dump_json())
    assert stored["strategy"] == {"name": path, "weighting": "uniform", "alpha": 0.25}
    assert parse(stored) == config and parse(stored).identity() == config.identity()
    assert parse(override(values, ["strategy.alpha=1"])).identity() != config.identity()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("beta = 0.9", "field beta has no type, expected one: write it as in `beta: float = 0.9`"),
        ("weighting = 'samples'", "field weighting has no type, expected one"),
        ("beta: float = 0.9\n\n\nMADE = Mine(beta='big')", "Mine: beta = 'big': expected a valid number"),
    ],
)
def test_a_wrong_field_is_named_in_our_words(write, line, words):
    name = write(f"from relief_ray import FedAvg\n\n\nclass Mine(FedAvg):\n    {line}\n")
    with pytest.raises(UserError) as raised:
        load(f"{name}:Mine", "strategy")
    assert words in str(raised.value) and "pydantic.dev" not in str(raised.value)


def test_a_wrong_value_of_an_own_class_is_refused_where_it_is_written_and_a_right_one_taken():
    class Prox(FedAvg):
        mu: float = 0.1

    with pytest.raises(UserError, match=r"^Prox: mu = 'big': expected a valid number"):
        Prox(mu="big")
    assert (Prox(mu=1).mu, Prox().mu, Prox(mu=0.5).model_copy(update={"mu": 2.0}).mu) == (1.0, 0.1, 2.0)
    with pytest.raises(UserError, match=r"^Prox: nu = 1: no such field$"):
        Prox(nu=1)

    class Small(Prox):
        @model_validator(mode="after")
        def _small(self):
            if self.mu > 1:
                raise ValueError("mu is above 1")
            return self

    with pytest.raises(UserError, match=r"^Small: mu is above 1$"):
        Small(mu=3)

    class Positional(FedAvg):
        mu: float = 0.1

        def __init__(self, mu=0.1, **more):
            super().__init__(mu=mu, **more)

    assert Positional(0.5).mu == Positional(mu=0.5).mu == 0.5, "refused where it is loaded, not here"


def test_what_an_object_has_is_listed_where_it_lacks_an_attribute():
    step = LocalStep(logits=torch.ones(1), labels=torch.ones(1), taps={}, params={}, start={}, args={})
    with pytest.raises(AttributeError) as raised:
        step.x  # noqa: B018
    assert text_of(raised.value).endswith(
        "no attribute 'x'; it has logits, labels, taps, params, start, args and cross_entropy"
    )


def test_an_instance_may_be_varied(write):
    module = write(METHOD + "\nSTRONG = Mine(alpha=0.75, weighting='samples')\n")
    config = with_strategy({"name": f"{module}:STRONG", "weighting": "uniform"})
    assert config.strategy.model_dump() == {"weighting": "uniform", "alpha": 0.75}
    assert config.label() == f"{module}:Mine"


def test_a_class_derived_from_a_built_in_one_is_the_users(write):
    module = write("from relief_ray.strategies.fedprox import FedProx\n\n\nclass Near(FedProx):\n    mu: float = 0.5\n")
    config = with_strategy(f"{module}:Near")
    assert json.loads(config.model_dump_json())["strategy"]["name"] == config.label() == f"{module}:Near"
    assert parse(json.loads(config.model_dump_json())) == config


def test_a_built_in_method_by_import_path_is_built_in():
    config = with_strategy("relief_ray.strategies.fedavg:FedAvg")
    assert config == with_strategy("fedavg") and config.label() == "fedavg" and config.modules() == ()
    assert ExperimentConfig(strategy=FedAvg()).label() == "fedavg"


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("{}:", METHOD, "expected an import path like my.module:MyClass"),
        ("{}:Mime", METHOD, r"the module has no 'Mime'; own_\d+\.py is a file here; type own_\d+:Mine"),
        (
            "elsewhere:Mine",
            METHOD,
            r"no module 'elsewhere' in the current folder .* or on PYTHONPATH \(found there: own_\d+\); start from",
        ),
        ("{}.sub:Mine", METHOD, "no module 'own_.*sub' in the current folder"),
        ("{}:Mine", "import nothing_like_it\n", "imports 'nothing_like_it', which is not installed; install it"),
        ("{}:Mine", "1 / 0\n", "fails with ZeroDivisionError: division by zero .*; mend the file"),
        ("{}:Mine", "class Mine(:\n", "fails with SyntaxError"),
        ("{}:Mine", "import sys\nsys.exit(0)\n", r"fails with SystemExit: 0 .*\.py, line 2"),
        ("{}:Mine", "import os\nos._exit(0)\n", r"fails with SystemExit: os\._exit\(0\) .*\.py, line 2"),
        ("{}:Mine", "from os import _exit as end\nend(3)\n", r"fails with SystemExit: os\._exit\(3\) .*\.py, line 2"),
        (
            "{}:Mine",
            "import torch\ntorch.set_grad_enabled(False)\n",
            r"importing 'own_\d+' changes this process: torch: its gradients are.* \(.*own_\d+\.py\); mend the file",
        ),
        (
            "{}:Mine",
            "import torch\ntorch.set_default_dtype(torch.float64)\n",
            r"changes this process: torch: its default type is torch.float64, expected torch.float32",
        ),
        (
            "{}:Mine",
            "import sys\nsys.stdout.close()\n",
            r"changes this process: closed sys.stdout, expected that it stays open \(.*own_\d+\.py\); mend the file",
        ),
        ("{}:Mine", "raise SystemExit\n", r"fails with SystemExit: .*\.py, line 1"),
        ("{}:Mine", "class Mine:\n    pass\n", r"found class Mine, expected a subclass of .*common\.StrategyConfig"),
        ("{}:Mine", "Mine = 3\n", "found a int, expected a subclass of"),
    ],
)
def test_what_is_wrong_with_a_path_is_said_in_one_line(write, monkeypatch, as_torch_is, path, text, message):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with pytest.raises(UserError, match=message) as caught:
        with_strategy(path.format(write(text)))
    assert str(caught.value).startswith("configuration: strategy") and "\n" not in str(caught.value)


def test_a_child_of_a_module_may_end_itself(write):
    child = "import os\nif not (child := os.fork()):\n    os._exit(7)\n"
    end = write(f"{child}END = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n{METHOD}")
    with_strategy(f"{end}:Mine")
    assert sys.modules[end].END == 7


def test_a_wrong_field_is_named(write):
    module = write(METHOD)
    expected = r"configuration: strategy\.alpha = 'much': expected a number, e.g. strategy.alpha=0.5 \(the default\)$"
    with pytest.raises(UserError, match=expected):
        with_strategy({"name": f"{module}:Mine", "alpha": "much"})
    with pytest.raises(UserError, match=r"unknown key 'strategy\.alpha_x'"):
        with_strategy({"name": f"{module}:Mine", "alpha_x": 1})


def test_a_file_in_the_current_folder_never_stands_in_for_an_installed_module(write):
    write("TOKEN = 'mine'\n", "json")
    import json as installed

    assert load("json:dumps", "x") is installed.dumps and sys.path[-1] == str(Path.cwd())


@pytest.mark.parametrize("name", ["json", "colorsys", "time", "torch"])
def test_a_file_behind_another_module_of_its_name_is_told_to_be_renamed(write, name):
    write(METHOD, name)
    with pytest.raises(
        UserError, match=rf"no 'Mine'; {name}.py is a file here, but another module .* \(.*\); rename the f"
    ):
        with_strategy(f"{name}:Mine")


def test_sources_are_the_file_and_what_it_imports_from_beside_it(write):
    write("import json, torch\n", "lab.base")
    write("", "lab.__init__")
    write("from . import base\n", "lab.more")
    write("", "lab.unused")
    write("import relief_ray.config.experiment\nVALUE = 1\n", "beside")
    module = write(
        "from beside import VALUE\nfrom lab.more import base\nfrom relief_ray.support.errors import UserError\n"
    )
    load(f"{module}:VALUE", "x")
    assert [s.name for s in sources([module])] == sorted(
        ["beside.py", "lab/__init__.py", "lab/base.py", "lab/more.py", f"{module}.py"]
    )
    assert sources(["relief_ray.config.experiment", "never_imported"]) == ()


def test_a_file_below_folders_without_init_is_found_where_nothing_of_them_is_imported(write):
    """Python itself asks for the parent of such a folder, which a report has not imported."""
    write("", "wide.__init__")
    write("VALUE = 1\n", "wide.open.deep")
    write("VALUE = 1\n", "bare.deep")
    assert [s.name for s in sources(["wide.open.deep", "bare.deep"])] == [
        "bare/deep.py",
        "wide/__init__.py",
        "wide/open/deep.py",
    ]
    assert not {"wide", "wide.open", "bare"} & sys.modules.keys()


def test_of_an_installed_package_only_its_own_modules_count(write):
    write("import pkg_b\nimport pkg_a.part\n", "site-packages.pkg_a.__init__")
    write("", "site-packages.pkg_a.part")
    write("", "site-packages.pkg_b")
    sys.path.append(str(Path.cwd() / "site-packages"))
    load("pkg_a:part", "x")
    assert [s.name for s in sources(["pkg_a"])] == ["pkg_a/__init__.py", "pkg_a/part.py"]


@pytest.mark.ci
def test_a_run_is_resumed_with_the_same_bits_and_refused_once_the_file_has_changed(write, tmp_path):
    module = write(METHOD)
    config = with_strategy({"name": f"{module}:Mine", "alpha": 0.25})
    drive(config, tmp_path / "whole")
    drive(config, tmp_path / "run", should_stop=after_rounds(1))
    run = read_run(tmp_path / "run")
    assert run.own_sources == digests([module]) and list(run.own_sources) == [f"{module}.py"]
    assert run.strategy == f"{module}:Mine" and other_program(run) is None
    drive(config, tmp_path / "run", should_stop=after_rounds(1))
    text = Path(f"{module}.py").read_text()
    Path(f"{module}.py").write_text(text + "\n# another remark\n")
    assert other_program(run) is None
    Path(f"{module}.py").write_text(text + "\nANOTHER = 1\n")
    with pytest.raises(UserError, match=rf"begun by another program \({module}\.py [0-9a-f]{{12}} there, .* here"):
        reopen(tmp_path / "run")
    Path(f"{module}.py").write_text(text)
    drive(config, tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    drive(with_strategy("fedavg"), tmp_path / "fedavg")
    assert outcome(tmp_path / "fedavg")["state"] != outcome(tmp_path / "whole")["state"]


HOOKS = """
from dataclasses import replace

from relief_ray.core.federated import Insight
from relief_ray.core.protocols import Explanation, ExplanationSection
from relief_ray.strategies.common import StrategyConfig
from relief_ray.strategies.fedsa_lora import FedSALoRA


def half_a_second(context):
    return 0.5 * context.round


def warn(run):
    return (f"{run.context.num_rounds} rounds of {len(run.context.participants)} clients, {run.clock}",)


def diagnose(state, layout):
    return {"d_bar": {"head.1": 2.0}, "warmth": {"head.1": 36.6}}


def explain(request):
    warmth = request.before["warmth"]["head.1"] if request.before else 0.0
    return Explanation(
        sections=(
            ExplanationSection(
                heading=f"1. Warmth decides in round {request.context.round}",
                lines=(f"It was {warmth:g} in the round before. " + "So be it. " * 10,),
                head=("group", "trained?"),
                rows=(("fusion.A.acc", "yes"), ("head.1", "no")),
            ),
        ),
        groups=("fusion.A.acc",),
        facts={"warmth": warmth, "device": request.client.device},
    )


class Hooked(StrategyConfig):
    title = "Half & half"
    about = "FedSA-LoRA with half a second a round"
    search = {"heads": {"weighting": "uniform"}, "windows": {"weighting": "samples"}}
    citation = "@misc{half2026, title = {Half and half}}"
    paper_accounting = "fedavg"
    pooled = POOLED
    explains = True

    def build(self):
        insight = Insight(deadline_s=half_a_second, warnings=warn, diagnose=diagnose, explain=explain)
        return replace(FedSALoRA().build(), name="hooked", insight=insight)


class Ceiling(Hooked):
    title = "Ceiling"
    kind = "bound"
    citation = "mcmahan2017fedavg"


class Halved(Hooked):
    title = "Half & half, halved"
    kind = "ablation of mine"
    reconstructed = True


class Untitled(FedSALoRA):
    pass


class Uncited(Hooked):
    citation = "mcmahan2017"
"""


@pytest.fixture
def hooked(write):
    """The module with the methods above, whose clients train on data of their own."""
    return write("POOLED = False" + HOOKS)


def test_a_users_method_has_every_hook_that_a_built_in_one_has(hooked, tmp_path):
    config = with_strategy(f"{hooked}:Hooked", costs={"accounting": "table"})
    assert (config.strategy.kind, config.strategy.reconstructed) == ("own", False)
    drive(config, tmp_path / "run")
    run, rounds = read_run(tmp_path / "run"), read_rounds(tmp_path / "run")
    assert run.budget["deadline_s"] == 0.5 and {r.deadline_s for r in rounds} == {0.5}
    (warning,) = run.warnings
    assert warning == f"{config.rounds} rounds of {len(rounds[0].participants)} clients, {config.costs.planning_time}"
    assert {r.speedup for r in rounds} == {1.0}, "charged for FedAvg's round, though it sends less"
    assert rounds[0].d_bar == {"head.1": 2.0} and rounds[0].diagnostics == {"warmth": {"head.1": 36.6}}
    assert run.method.model_dump(exclude_defaults=True) == {
        "name": "Half & half",
        "title": "Half & half",
        "kind": "own",
        "citation": "@misc{half2026, title = {Half and half}}",
        "paper_accounting": "fedavg",
        "varied": (),
    }
    (loaded,) = load_runs([tmp_path / "run"])
    assert not loaded.pooled
    drive(with_strategy("fedavg"), tmp_path / "fedavg")
    cells = read_cells([tmp_path / "run", tmp_path / "fedavg"])
    small = [(r.label, condense(r.run, r.rounds)) for r in load_runs([tmp_path / "run", tmp_path / "fedavg"])]
    write_committed(tmp_path / "cells.json", "t", small)
    for source in (cells, read_cells([tmp_path / "cells.json"])):
        warmth = source.round_frame.groupby("method")["warmth.head.1"].max().fillna(0).to_dict()
        assert warmth == {"Half & half": 36.6, "fedavg": 0}


@pytest.mark.ci
def test_reports_show_a_users_methods_as_their_file_states_them(hooked, tmp_path, capsys):
    for name in ("Ceiling", "Halved", "Hooked", "Untitled"):
        drive(with_strategy(f"{hooked}:{name}"), tmp_path / "runs" / name)
    drive(with_strategy("fedavg"), tmp_path / "runs" / "fedavg")
    comparison = compare([tmp_path / "runs"])
    shown = {row.label: (row.method.kind, row.is_bound) for row in comparison.rows}
    assert list(shown) == [
        "fedavg", "Half & half, halved (reconstructed)", "Half & half", "Untitled", "Ceiling",
    ]  # fmt: skip
    assert shown["Ceiling"] == ("bound", True) and shown["fedavg"] == ("baseline", False)
    assert comparison.runs_of("Half & half")[0].run.warnings[0] in remarks(comparison)
    kinds = {row["method"]: row["kind"] for row in json.loads(as_json(comparison))["methods"]}
    assert kinds == {label: kind for label, (kind, _) in shown.items()}
    (main,) = (t for t in build(take_inventory([tmp_path / "runs"])).tables if t.slug == "e1-main")
    rows = {row.name.rstrip("*‡"): row for row in main.rows}
    own = [name for name in rows if name in shown and name != "fedavg"]
    assert own == ["Half & half, halved (reconstructed)", "Half & half", "Untitled", "Ceiling"]
    assert [name for name, row in rows.items() if row.faint] == ["Ceiling"] and rows["Ceiling"].rule
    (all_of_them,), (alone,) = (
        compare_command([place], None, bibtex=True, wide=False, legend=False, setting=None)
        for place in (tmp_path / "runs", tmp_path / "runs" / "Hooked")
    )
    assert all_of_them.text.split("\n\n")[0].startswith("@inproceedings{mcmahan2017fedavg,")
    assert alone.text == "@misc{half2026, title = {Half and half}}"


def test_a_method_that_was_only_planned_is_called_as_its_run_would_be(hooked, tmp_path):
    planned("quick", tmp_path, strategies=f"{hooked}:Hooked,{hooked}:Ceiling").write()
    items = take_inventory([tmp_path]).items
    assert [(item.label, item.status) for item in items] == [("Half & half", "planned"), ("Ceiling", "planned")]
    assert [item.method.is_bound for item in items] == [False, True]


def test_a_grid_takes_a_users_methods_by_import_path(hooked, tmp_path):
    grid = f"""
from relief_ray.studies.spec import Spec, Level
def grid():
    own = {{'{hooked}.py:Halved': (Level(name='uniform', settings={{'strategy.weighting': 'uniform'}}),)}}
    return Spec(
        name='g', title='', methods=('fedavg', '{hooked}.py:Halved'), datasets=('dsa_mini',), seeds=(0,), own=own
    )
"""
    (tmp_path / "grid.py").write_text(grid)
    loaded = load_grid(str(tmp_path / "grid.py"))
    fedavg, halved = cells_of(loaded)
    assert (halved.label, halved.setting) == (f"{hooked}:Halved", "dsa_mini-uniform") and fedavg.label == "fedavg"
    assert halved.name.startswith(f"dsa_mini-uniform-{hooked}.Halved-s0-")
    chosen = cells_of(loaded, [f"methods=[fedavg, {hooked}.py:Hooked, {hooked}:Ceiling]"])
    assert [cell.label for cell in chosen] == ["fedavg", f"{hooked}:Hooked", f"{hooked}:Ceiling"]
    (one,) = cells_of(loaded, [f"methods={hooked}:Hooked", "rounds=1"])
    assert one.config.label() == f"{hooked}:Hooked" and one.config.modules() == (hooked,)
    for path, words in ((f"{hooked}:Missing", "has no 'Missing'"), ("no_such:Mine", "no module 'no_such'")):
        with pytest.raises(UserError, match=words):
            cells_of(loaded, [f"methods={path}"])
        with pytest.raises(UserError, match=words):
            cells_of(load_grid("search_lr"), [f"methods={path}"])


def test_a_search_tries_the_values_that_a_users_class_states(hooked):
    methods = f"methods=[relief, {hooked}.py:Hooked, {hooked}:Untitled]"
    cells = cells_of(load_grid("search_lr"), [methods, "datasets=dsa_mini"])
    tried = {label: [c for c in cells if c.label == f"{hooked}:{label}"] for label in ("Hooked", "Untitled")}
    assert {c.setting.rpartition("-")[2]: c.config.strategy.weighting for c in tried["Hooked"]} == {
        "heads": "uniform",
        "windows": "samples",
    }
    assert len(tried["Hooked"]) == 5 * 2 and len({c.hash for c in tried["Hooked"]}) == 10
    assert {c.config.choice.parameters for c in tried["Hooked"]} == {("training.lr", "strategy.weighting")}
    assert {c.config.choice.parameters for c in tried["Untitled"]} == {("training.lr", "training.batch_size")}
    assert len(tried["Untitled"]) == 15


def test_conformance_says_what_a_users_method_is(hooked):
    def said(target):
        config = with_strategy(target)
        method, about = facts_of(config.strategy, config.label()), about_of(config.strategy, config.label())
        return method.name, method.kind, about

    assert {name: said(f"{hooked}:{name}") for name in ("Hooked", "Halved", "Untitled")} == {
        "Hooked": ("Half & half", "own", "FedSA-LoRA with half a second a round"),
        "Halved": ("Half & half, halved (reconstructed)", "ablation of mine", ""),
        "Untitled": ("Untitled", "own", ""),
    }
    name, kind, about = said("v1")
    assert (name, kind) == ("v1", "ablation") and about.startswith("RELIEF without elastic training")


def test_two_methods_of_one_title_are_told_apart_by_their_import_paths():
    ours, theirs = {"name": "fedavg", "weighting": "uniform"}, {"name": "lab:Mine", "weighting": "uniform"}
    names = variant_names([(name, {"strategy": s}) for name, s in (("fedavg", ours), ("fedavg", theirs))])
    assert names == ["fedavg", "fedavg (name=lab:Mine)"]
    assert variant_names([("Best", {"strategy": s}) for s in (theirs, {**theirs, "name": "lab:More"})]) == [
        "Best (name=lab:Mine)",
        "Best (name=lab:More)",
    ]


def test_a_citation_is_a_known_key_or_an_entry(hooked, tmp_path):
    with pytest.raises(UserError, match=r"citation 'mcmahan2017': unknown \(did you mean 'mcmahan2017fedavg'\?\)"):
        drive(with_strategy(f"{hooked}:Uncited"), tmp_path / "run")


def test_a_users_method_explains_itself(hooked, tmp_path):
    drive(with_strategy(f"{hooked}:Hooked"), tmp_path / "run")
    text = str(explain_command(tmp_path / "run", 2, 0).text)
    assert "Client 0 in round 2 of" in text and "strategy Half & half\n" in text
    assert "\n1. Warmth decides in round 2\n   It was 36.6 in the round before." in text
    assert "   fusion.A.acc       yes\n   head.1              no\n" in text
    assert "But the record of round 2 says" in text and all(len(line) <= 100 for line in text.splitlines())
    facts = explain_command(tmp_path / "run", 1, 0).facts
    recorded = next(c for c in read_rounds(tmp_path / "run")[0].clients if c.client == 0).trained
    assert (facts["warmth"], facts["groups"], facts["recorded"]) == (0.0, ["fusion.A.acc"], list(recorded))


def test_fleet_shows_the_deadline_of_a_users_method(hooked):
    text = "\n".join(show("quick", typed(f"strategy={hooked}:Hooked")).text)
    assert "the deadline of Half & half in round 1" in text
    assert [line.split()[2:] for line in text.splitlines() if line.strip().startswith("T*, s")] == [["0.500"] * 3]


def test_a_users_bound_on_pooled_data_is_known_as_one(write, tmp_path):
    drive(with_strategy(f"{write('POOLED = True' + HOOKS)}:Hooked"), tmp_path / "run")
    (loaded,) = load_runs([tmp_path / "run"])
    assert loaded.pooled and loaded.run.method.pooled and loaded.run.warnings == ()


MEDIAN = """
from relief_ray.data.formats.dsa_mini import DSA_MINI as MINE
from relief_ray.models.cnn import CnnConfig
from relief_ray.strategies.common import StrategyConfig
from relief_ray.strategies import about_of, facts_of
from relief_ray.strategies.fedavg import FedAvg


class Median(FedAvg):
    pass


class Net(CnnConfig):
    pass
"""


@pytest.mark.parametrize("typed", ["median_x", "median_x.py", "median_x.Median", "median_x.median", "median_x:median"])
def test_a_name_that_means_a_file_here_is_answered_with_what_to_type(write, typed):
    """For methods, data sets and backbones; a built-in name that the file imports is not suggested."""
    write(MEDIAN, "median_x")
    said = r"median_x\.py is a file here; type median_x:"
    with pytest.raises(UserError, match=rf"strategy.*{said}Median$"):
        with_strategy(typed)
    for wanted, values in (("MINE", {"data": {"name": typed}}), ("Net", {"backbone": {"name": typed}})):
        changed = typed.replace("Median", wanted).replace("median_x.median", f"median_x.{wanted.lower()}")
        changed = changed.replace(":median", f":{wanted.lower()}")
        (section, names), *_ = values.items()
        with pytest.raises(UserError, match=rf"{said}{wanted}$"):
            parse({**BASE, section: {**names, "name": changed}})


def test_a_misspelt_module_or_name_is_answered_with_the_likest(write):
    """A module beside, in a folder, or a folder; where none is alike all are named; without any nothing."""
    with pytest.raises(UserError, match=r"or on PYTHONPATH; start from"):
        with_strategy("median_y:Median")
    write(MEDIAN + "\n\nclass Mean(FedAvg):\n    pass\n", "median_x")
    write("", "lab_of_mine.quartile")
    write("", "test_median")
    for path, meant in (
        ("meidan_x:Median", "median_x:Median"),
        ("median.py:Median", "median_x:Median"),
        ("MEDIAN_X:Median", "median_x:Median"),
        ("lab_of_mine.quartle:Q", "lab_of_mine.quartile:Q"),
        ("lab_of_mime.quartile:Q", "lab_of_mine.quartile:Q"),
    ):
        for section in ("strategy", "backbone"):
            with pytest.raises(UserError, match=rf"or on PYTHONPATH \(did you mean '{meant}'\?\); start from"):
                parse({section: path})
        with pytest.raises(UserError, match=rf"\(did you mean '{meant}'\?\)"):
            parse({"data": {"name": path}})
    with pytest.raises(UserError, match=r"or on PYTHONPATH \(found there: lab_of_mine, median_x\); start from"):
        with_strategy("entirely_else:Median")
    for path, meant in (("Meen", "Mean"), ("Mediann", "Median")):
        with pytest.raises(UserError, match=rf"type median_x:{meant}$"):
            with_strategy(f"median_x:{path}")


def test_several_names_none_and_a_file_that_breaks(write):
    write(MEDIAN + "\n\nclass Mean(FedAvg):\n    pass\n", "median_x")
    with pytest.raises(UserError, match=r"type median_x:Median or median_x:Mean$"):
        with_strategy("median_x")
    write("x = 1\n", "lab.plain")
    with pytest.raises(
        UserError,
        match=r"lab/plain\.py is a file here, but defines neither a class derived from StrategyConfig nor an instance$",
    ):
        with_strategy("lab/plain.py")
    write("1 / 0\n", "faulty")
    with pytest.raises(UserError, match=r"faulty\.py is a file here, but .*ZeroDivisionError"):
        with_strategy("faulty")
    with pytest.raises(UserError, match=r"did you mean 'fedavg'"):
        with_strategy("fedavgg")
