"""docs/extending.md, executed: every file is written as it stands there, every command line is run, Ray included."""

import importlib
import json
import os
import re
import runpy
import shlex
import shutil
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import safetensors.torch
from typer.testing import CliRunner

from actors.cli.main import app
from relief_ray.conformance.backbones import BACKBONE_RULES
from relief_ray.conformance.rules import RULES
from relief_ray.conformance.runner import outcome
from relief_ray.experiment.setup import choose_engine
from relief_ray.records import checkpoint
from relief_ray.records.run_folder import read_rounds
from relief_ray.support.errors import UserError
from tests.conformance.cases import config_of, drive
from tests.training.scenario import NUM_WINDOWS, SHAPE, Scenario, distance

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()
FILES = dict(re.findall(r"```python\n# file: (\S+)\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)

Shell = Callable[..., str]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The user's folder, where `relief-ray` is a command and nothing is installed but what is."""
    folder = tmp_path_factory.mktemp("user")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    command = folder / "bin" / "relief-ray"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nimport sys\nsys.path[0] = {str(ROOT)!r}\n"
                       "from actors.cli.main import main\nmain()\n")  # fmt: skip
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.fixture(scope="module")
def as_typed(place, tmp_path_factory) -> Shell:
    """Runs lines as a user types them, with a cluster of their own; stops at the first that fails."""
    env = {k: v for k, v in os.environ.items() if k != "RELIEF_DATA"}
    path = f"{place / 'bin'}:{Path(sys.executable).parent}:{env['PATH']}"
    env |= {"PATH": path, "OMP_NUM_THREADS": "1", "RELIEF_CACHE": str(tmp_path_factory.mktemp("cache"))}
    env["PYTHONPATH"] = str(ROOT)

    def run(lines, folder=place, code=0):
        done = subprocess.run(["sh", "-ec", lines], cwd=folder, env=env, text=True, capture_output=True, timeout=400)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def in_process(place, cluster, monkeypatch) -> Iterator[Shell]:
    """Runs the same lines in this process, on the cluster of all tests: seconds instead of a minute."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PWD", str(place))
    monkeypatch.delenv("RELIEF_DATA", raising=False)
    before = set(sys.modules)

    def run(lines):
        return "".join(one(shlex.split(os.path.expandvars(line))) for line in lines.strip().splitlines())

    def one(words):
        command, *rest = words
        if command == "relief-ray":
            done = CliRunner().invoke(app, rest, prog_name=command)
            assert done.exit_code == 0, done.output
            return done.stdout
        if command == "export":
            monkeypatch.setenv(*rest[0].split("=", 1))
        else:
            assert command == "python"
            runpy.run_path(rest[0], run_name="__main__")
        return ""

    yield run
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(place)):
            del sys.modules[name]


@pytest.fixture(params=["in_process", pytest.param("as_typed", marks=pytest.mark.slow)])
def shell(request, place) -> Shell:
    for made in ("runs", "gestures"):
        shutil.rmtree(place / made, ignore_errors=True)
    return request.getfixturevalue(request.param)


def test_the_page_has_its_examples():
    methods = ["my_hooks.py", "my_method.py", "my_personal.py", "my_medians.py"]
    backbones = ["my_tcn.py", "my_net.py", "my_backbone.py"]
    assert list(FILES) == [*methods, *backbones, "my_people.py", "make_people.py", "my_data.py", "make_gestures.py"]
    assert len(COMMANDS) == 10
    lines = {name: [line for line in text.splitlines() if line.strip()] for name, text in FILES.items()}
    assert len(lines["my_people.py"]) - 2 <= 15, "without the run"
    assert len(lines["my_tcn.py"]) - lines["my_tcn.py"].index("class Tcn(rr.PlainBackbone):") <= 6
    for rule in (*RULES, *BACKBONE_RULES):
        assert f"| `{rule}` |" in PAGE, "every rule is in the page's tables"


@pytest.mark.ci
@pytest.mark.ray
def test_methods_of_a_few_lines(shell, place):
    printed = shell(COMMANDS[0])
    assert printed.startswith("client_loss is charged 3 FLOPs per trained value and step (flops_per_value)")
    assert f"my_hooks:Momentum: keeps {len(RULES)} rules" in printed and "my_hooks:Prox: keeps 1 rule\n" in printed
    run = json.loads((place / "runs/hooks/my_hooks.Momentum-s0/run.json").read_text())
    assert (run["method"]["name"], run["method"]["kind"], run["method"]["citation"]) == ("Momentum", "own", None)
    assert re.search(r"\nMomentum +\d", printed) and re.search(r"\nHeadOnly +\d", printed)
    last = read_rounds(place / "runs/hooks/my_hooks.HeadOnly-s0")[-1]
    assert {len(c.trained) for c in last.clients} == {1, max(len(c.trained) for c in last.clients)}


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("name", ["Prox", "HeadOnly", "Fading"])
def test_the_others_of_a_few_lines_keep_the_rules(in_process, name):
    assert f"my_hooks:{name}: keeps {len(RULES)} rules" in in_process(f"relief-ray conformance my_hooks:{name}")


@pytest.mark.parametrize(("name", "most"), [("Momentum", 11), ("Prox", 9), ("HeadOnly", 6), ("Fading", 11)])
def test_how_short_they_are(name, most):
    """Lines of code with the import, as ruff formats them."""
    (body,) = (part for part in FILES["my_hooks.py"].split("\n\n\n") if part.startswith(f"class {name}("))
    assert 1 + sum(bool(line.strip()) for line in body.splitlines()) <= most


@pytest.mark.ci
@pytest.mark.ray
def test_the_method(shell, place):
    printed = shell(COMMANDS[1])
    assert f"my_method:MyMethod: keeps {len(RULES)} rules" in printed
    run = json.loads((place / "runs/quick/my_method.MyMethod-s0/run.json").read_text())
    assert run["config"]["strategy"] == {"name": "my_method:MyMethod", "beta": 0.3, "weighting": "uniform"}
    assert list(run["own_sources"]) == ["my_method.py"]
    packed = json.loads((place / "runs/both/my_method.MyMethod-s0/run.json").read_text())
    assert packed["runtime"]["mode"] == "packed" and packed["status"] == "done"
    assert re.search(r"my_method +\d", printed)


@pytest.mark.slow
@pytest.mark.ray
def test_methods_with_personal_parts_views_and_single_updates(shell, place):
    printed = shell(COMMANDS[2])
    for name in ("my_personal:Personal", "my_medians:Medians"):
        assert f"{name}: keeps {len(RULES) - 1} rules, 1 not judged" in printed
    personal = read_rounds(place / "runs/three/my_personal.Personal-s0")[-1]
    trained = [set(c.trained) for c in personal.clients]
    assert all("head.1" in groups and len(groups) < 11 for groups in trained), "the head, and half of the others"
    medians = place / "runs/three/my_medians.Medians-s0"
    last = safetensors.torch.load_file(checkpoint.generations(medians)[0] / checkpoint.STATE_FILE)
    views = {name.split("/")[1] for name in last if name.startswith("models/")}
    assert views == {"acc", "acc%2Bgyro", "acc%2Bgyro%2Bmag"} and any("exit.early" in name for name in last)


@pytest.mark.ci
@pytest.mark.ray
def test_a_method_that_is_another_one(shell):
    printed = shell(COMMANDS[3])
    assert printed.count("keeps 1 rule\n") == 2 and "my_method:MyMethod with beta=0 against fedavg" in printed


@pytest.mark.ci
@pytest.mark.ray
def test_the_plain_module(shell, place):
    printed = shell(COMMANDS[4])
    assert f"my_tcn:Tcn: keeps {len(BACKBONE_RULES)} rules" in printed
    run = json.loads((place / "runs/tcn/fedavg-s0/run.json").read_text())
    assert run["config"]["backbone"] == {"name": "my_tcn:Tcn", "width": 8} and run["status"] == "done"


@pytest.mark.ci
@pytest.mark.ray
def test_arrays(shell, place):
    shell(COMMANDS[7])
    run = json.loads((place / "runs/people/relief-s0/run.json").read_text())
    name = run["config"]["data"]["name"]
    assert run["status"] == "done" and re.fullmatch("arrays:mine@[0-9a-f]{12}", name) and not run["own_sources"]
    assert f"{name}: keeps 14 rules" in shell(f"relief-ray conformance {name}")
    assert f"{name}: mine (SYNTHETIC)" in shell(f"relief-ray data describe {name}")
    assert "report runs/same" in shell(f"relief-ray run quick --set data.name={name} --out runs/same")


@pytest.mark.ci
@pytest.mark.ray
def test_the_module_with_encoders_by_sensor(shell, place):
    printed = shell(COMMANDS[5])
    assert f"my_net:MyNet: keeps {len(BACKBONE_RULES)} rules" in printed
    assert "BatchNorm: running statistics of 6 layers stay on each client" in printed
    run = json.loads((place / "runs/net/relief-s0/run.json").read_text())
    assert run["config"]["backbone"] == {"name": "my_net:MyNet", "width": 16} and run["status"] == "done"


@pytest.mark.slow
@pytest.mark.ray
def test_the_backbone(shell, place):
    described, printed = shell(COMMANDS[6]).split("quick: 1 run")
    assert "Backbone my_backbone:MyBackbone of quick" in described and "G = 8 groups = 3 fusion blocks" in described
    assert "NOTE: backbone my_backbone:MyBackbone: not calibrated" in printed
    assert f"my_backbone:MyBackbone: keeps {len(BACKBONE_RULES)} rules" in printed
    assert f"relief: keeps {len(RULES) - 1} rules, 1 not judged" in printed
    run = json.loads((place / "runs/mlp/relief-s0/run.json").read_text())
    assert run["engine"] == "reuse" and run["config"]["backbone"]["hidden"] == 8


@pytest.mark.slow
@pytest.mark.ray
def test_the_dataset_and_all_three_together(shell, place):
    printed = shell(COMMANDS[8])
    assert "Gestures of four people" in printed and "SYNTHETIC" in printed
    run = json.loads((place / "runs/gestures/relief-s0/run.json").read_text())
    assert run["data_origin"] == "SYNTHETIC" and run["config"]["data"]["name"] == "my_data:GESTURES"
    together = shell(COMMANDS[9])
    assert "reused, finished already" in together and re.search(r"my_method +\d", together)
    run = json.loads((place / "runs/mine/my_method.MyMethod-s0/run.json").read_text())
    assert sorted(run["own_sources"]) == ["my_backbone.py", "my_data.py", "my_method.py"]
    assert run["status"] == "done" and run["runtime"]["mode"] == "packed"


@pytest.mark.ci
@pytest.mark.ray
def test_a_resume_from_another_folder_says_where_to_start(in_process, place, tmp_path, monkeypatch):
    in_process("relief-ray run quick --set strategy=my_method:MyMethod --set rounds=1 --out runs/elsewhere")
    del sys.modules["my_method"]
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in ("", str(place))])
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(app, ["resume", str(place / "runs/elsewhere")])
    assert refused.exit_code == 2 and "no module 'my_method' in the current folder" in " ".join(refused.stderr.split())
    monkeypatch.syspath_prepend(str(place))
    assert "reused" in in_process(f"relief-ray resume {place / 'runs/elsewhere'}")


@pytest.mark.slow
def test_a_resume_from_another_folder_says_where_to_start_as_typed(as_typed, place, tmp_path):
    as_typed("relief-ray run quick --set strategy=my_method:MyMethod --set rounds=1 --out runs/typed")
    run = place / "runs/typed"
    lines = f"relief-ray resume {run} 2>&1 || echo code $?"
    printed = " ".join(as_typed(lines, tmp_path).split())
    assert "no module 'my_method' in the current folder" in printed and printed.endswith("code 2")
    assert "reused" in as_typed(f"PYTHONPATH={place}:$PYTHONPATH relief-ray resume {run}", tmp_path)


def test_the_engines_agree_on_the_backbone(write, run_cache, tmp_path):
    """Same rounding but for the order of sums: what is reused is what would have been computed."""
    module = write(FILES["my_backbone.py"])
    losses = {}
    for engine in ("naive", "reuse"):
        backbone = {"name": f"{module}:MyBackbone", "hidden": 8}
        config = config_of("relief", backbone=backbone, training={"epochs": 2, "lr": 0.01, "engine": engine})
        drive(config, tmp_path / engine)
        losses[engine] = [c["loss"] for r in outcome(tmp_path / engine)["rounds"] for c in r["clients"]]
    assert len(losses["naive"]) == 3 * 8, "three rounds of eight clients"
    assert losses["reuse"] == pytest.approx(losses["naive"], rel=1e-4)


@pytest.mark.parametrize("groups", [None, ("fusion.A.acc", "fusion.B", "head.1")], ids=["everything", "own"])
def test_reuse_computes_the_backbones_frozen_stages_once(write, groups):
    """Counted by hooks on the page's own stages; the update is the naive engine's."""
    name, calls, updates = write(FILES["my_backbone.py"]), {}, {}
    sys.path.insert(0, str(Path.cwd()))
    module = importlib.import_module(name)
    for engine in ("naive", "reuse"):
        scenario = Scenario(engine, backbone=module.MyBackbone(hidden=8).build(SHAPE, 0))
        calls[engine] = seen = Counter()
        for stage in scenario.backbone.stages:
            note = partial(lambda name, m, x, y, seen: seen.update([(name, len(x[0]))]), stage.spec.id, seen=seen)
            stage.module.register_forward_hook(note)
        updates[engine] = scenario.train(groups, epochs=5)
    assert distance(updates["reuse"], updates["naive"]) <= 1e-5
    in_steps = {16: 10, 13: 5}  # rows: times
    for stage in ("encoder.acc.1", "fusion.A.gyro", "fusion.A.acc", "head.1"):
        counted = {e: {rows: n for (name, rows), n in calls[e].items() if name == stage} for e in calls}
        frozen = groups is not None and stage in ("encoder.acc.1", "fusion.A.gyro")
        assert counted == {"naive": in_steps, "reuse": {NUM_WINDOWS: 1} if frozen else in_steps}, stage


def test_an_engine_that_the_backbone_does_not_have_is_refused(write, run_cache, tmp_path):
    """It would run as `reuse` and be recorded as `gemm`."""
    text = FILES["my_backbone.py"]
    config = config_of("relief", backbone=f"{write(text)}:MyBackbone", training={"engine": "gemm"})
    with pytest.raises(UserError, match=r"'gemm': backbone \w+:MyBackbone has no stages for it; take 'reuse'"):
        drive(config, tmp_path / "none")
    able = write(text.replace("    hidden: int", '    engines = ("gemm",)\n    hidden: int', 1))
    for engine in ("auto", "gemm"):
        assert choose_engine(config_of("relief", backbone=f"{able}:MyBackbone", training={"engine": engine})) == "gemm"
