"""Users' code at fault is named: function, file, line, what was found and expected; nothing of it is committed."""

import io
import re
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import torch

from actors.terminal.exit_codes import exit_code
from relief_ray.config.experiment import parse
from relief_ray.core import federated
from relief_ray.core.messages import WeightedSum
from relief_ray.experiment.experiment import Experiment
from relief_ray.experiment.lifecycle import create, reopen
from relief_ray.experiment.setup import context_of, prepare
from relief_ray.experiment.update_filter import Accepting
from relief_ray.plugins import contract as guarded
from relief_ray.plugins.blame import blamed, called, take_as_users, users_function
from relief_ray.records.checkpoint import CheckpointStateStore
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.server.aggregation import one_bucket
from relief_ray.strategies import PRESETS
from relief_ray.support.errors import UserCodeError, UserCodeFailed, UserError
from relief_ray.training.executor import SerialExecutor
from tests.faulty import BACKBONES, CLOCKS, METHODS, judge, net
from tests.own import METHOD, NUMBERS

pytestmark = pytest.mark.usefixtures("run_cache")
TINY = {
    "data": {"name": "dsa_mini", "stride_s": 30.0, "max_windows_per_client": 8},
    "backbone": {"conv1": 2, "conv2": 2, "steps": 2, "fusion": 2},
    "training": {"epochs": 1, "lr": 0.01},
    "evaluation": {"every": 2},
    "rounds": 2,
    "runtime": {"mode": "inline"},
    "tracking": {"enabled": False},
}


WHOLE_RUNS = ("allocate exits", "another shape", "one client as another")


@pytest.fixture(scope="module")
def ready(run_cache):
    """A run that is ready to start, for all tests of a round."""
    return prepare(parse(TINY))


def go_on(setup, folder):
    with folder:
        Experiment(setup=setup, folder=folder, executor=SerialExecutor(setup.job)).run()


def fail(path, values):
    """The error of a run, as the command line takes it."""
    with pytest.raises(BaseException) as caught:
        go_on(*create(parse({**TINY, **values}), path))
    return caught.value


def one_round(ready, name):
    """A round's functions, called as a run calls them, with the method of a file."""
    strategy = guarded.guarded(parse({**TINY, "strategy": f"{name}:Mine"}).strategy.build())
    job = replace(ready.job, program=strategy.client, reduction=strategy.reduction)
    executor, store = Accepting(executor=SerialExecutor(job), quorum=1.0), CheckpointStateStore({})
    state = strategy.init(ready.layout, ready.fleet, ready.streams, ready.start)
    done = federated.run_round(strategy, state, context_of(ready, 2), executor, store, ready.accountant)
    strategy.averaging.identities(done.state)
    strategy.evaluate(done.state, ready.fleet)


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_function_that_closes_the_terminal_is_named(name, monkeypatch):
    monkeypatch.setattr(sys, name, io.StringIO())
    with pytest.raises(UserCodeFailed, match=rf"aggregate closed sys.{name}, .*test_faulty_plugins.py, line \d+"):
        called(lambda: getattr(sys, name).close(), "aggregate")
    assert not getattr(sys, name).closed, "what follows can be printed"


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_function_that_closes_the_terminal_before_a_run_is_named(name, write, monkeypatch):
    """What builds a method, and what a class of ours builds of a user's module."""
    monkeypatch.setattr(sys, name, io.StringIO())
    path = write(net(f"__import__('sys').{name}.close(); return Net(shape, shape.num_classes)", "module", "").text)
    said = rf"own_\d+:Mine closed sys.{name}, expected that it stays open"
    with pytest.raises(UserCodeError, match=said):
        prepare(parse({**TINY, "backbone": f"{path}:Mine"}))
    assert not getattr(sys, name).closed, "what follows can be printed"
    monkeypatch.setattr(sys, name, io.StringIO())
    text = "import sys\nfrom relief_ray.strategies.fedavg import FedAvg\nclass Mine(FedAvg):\n    def build(self):\n"
    with pytest.raises(UserCodeError, match=said):
        prepare(
            parse({**TINY, "strategy": f"{write(text + f'        sys.{name}.close(); return super().build()')}:Mine"})
        )


def test_none_of_the_faults_was_lost():
    assert len(METHODS) + len(BACKBONES) + len(CLOCKS) >= 60


@pytest.mark.parametrize(
    ("name", "returned", "said"),
    [
        ("insight.diagnose", {1: {}}, "a table's name is a int, expected a text"),
        ("insight.diagnose", {"warm": {2: 1.0}}, "table 'warm': a row's name is a int, expected a text"),
        ("insight.diagnose", {"warm": {"a": 10**400}}, "table 'warm', row 'a': a number beyond a float's range"),
        ("insight.diagnose", {"\ud800": {}}, "a table's name is .*expected a text without lone surrogates"),
        ("insight.diagnose", {"warm": {"\udfff": 1.0}}, "table 'warm': a row's name is .*without lone surrogates"),
        ("insight.warnings", ("\ud800",), "returned .*expected a text without lone surrogates"),
        ("insight.warnings", ["fine", "a\udc00b"], "returned .*expected a text without lone surrogates"),
    ],
)
def test_names_and_numbers_that_no_record_can_hold_are_refused(name, returned, said):
    with pytest.raises(UserCodeFailed, match=rf"{said}.*test_faulty_plugins.py, line \d+"):
        guarded.held(name, lambda *_: returned)(None)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({1: torch.zeros(1)}, "tensors has a name that is a int, expected a text"),
        ({"\ud800": torch.zeros(1)}, "tensors has a name that is .*without lone surrogates"),
        ({"m": torch.zeros(1, requires_grad=True)}, r"tensors\['m'\] is a tensor that requires a gradient"),
        ({"m": torch.nn.Parameter(torch.zeros(1))}, r"tensors\['m'\] is a tensor that requires a gradient"),
    ],
)
def test_tensors_that_no_checkpoint_can_hold_are_refused(tensors, said, ready):
    state = federated.ServerState(models={"global": dict(ready.start)}, tensors=tensors)
    with pytest.raises(UserCodeFailed, match=rf"init: {said}.*test_faulty_plugins.py, line \d+"):
        guarded.held("init", lambda *_: state)(ready.layout, ready.fleet, ready.streams, ready.start)


def test_models_with_gradients_are_refused(ready):
    start = {j: theta.clone().requires_grad_() for j, theta in ready.start.items()}
    state = federated.ServerState(models={"global": start})
    with pytest.raises(UserCodeFailed, match=r"'global', group 'fusion.A.acc': a tensor that requires a gradient"):
        guarded.held("init", lambda *_: state)(ready.layout, ready.fleet, ready.streams, ready.start)


@pytest.mark.parametrize("which", METHODS)
def test_a_method_at_fault_is_named(which, write, ready):
    fault = METHODS[which]
    name = write(fault.text)
    with pytest.raises(BaseException) as caught:
        one_round(ready, name)
    judge(caught.value, fault, name)


@pytest.mark.parametrize("which", [m if m in WHOLE_RUNS else pytest.param(m, marks=pytest.mark.slow) for m in METHODS])
def test_the_rounds_before_a_fault_stay_and_the_run_goes_on_from_them(which, write, tmp_path, monkeypatch):
    fault = METHODS[which]
    name = write(fault.text)
    judge(fail(tmp_path / "run", {"strategy": f"{name}:Mine"}), fault, name)
    if fault.round < 2:
        return
    assert [r.round for r in read_rounds(tmp_path / "run")] == [1], "nothing of the wrong round is committed"
    run = read_run(tmp_path / "run")
    assert run.status == "failed" and fault.said in run.note
    assert fault.code != 7 or re.search(rf"{name}\.py, line \d+, in {fault.function}\b", run.note)
    monkeypatch.setenv("WORKS", "1")
    go_on(*reopen(tmp_path / "run"))
    assert [r.round for r in read_rounds(tmp_path / "run")] == [1, 2]


@pytest.mark.parametrize("which", BACKBONES)
def test_a_backbone_at_fault_is_named(which, write):
    fault = BACKBONES[which]
    name = write(fault.text)
    with pytest.raises(BaseException) as caught:
        prepare(parse({**TINY, "backbone": f"{name}:Mine"}))
    judge(caught.value, fault, name)


@pytest.mark.parametrize("which", CLOCKS)
def test_a_clock_at_fault_is_named(which, write):
    fault = CLOCKS[which]
    name = write(fault.text)
    with pytest.raises(BaseException) as caught:
        prepare(parse({**TINY, "costs": {"planning_time": f"{name}:Mine"}}))
    judge(caught.value, fault, name)


def test_a_clock_at_fault_in_a_round_is_named_and_the_round_is_not_committed(write, tmp_path, monkeypatch):
    """FedAvg plans nothing: it is the charges that ask the clock."""
    fault = CLOCKS["NaN"]
    name = write(fault.text)
    monkeypatch.setenv("WORKS", "1")
    setup, folder = create(
        parse({**TINY, "strategy": "fedavg", "costs": {"planning_time": f"{name}:Mine"}}), tmp_path / "run"
    )
    monkeypatch.delenv("WORKS")
    with pytest.raises(UserCodeFailed) as caught:
        go_on(setup, folder)
    judge(caught.value, fault, name)
    assert not read_rounds(tmp_path / "run") and fault.said in read_run(tmp_path / "run").note


def test_figures_that_no_clock_of_ours_can_use_are_bad_input():
    with pytest.raises(
        UserError, match=r"clock \w+, device type A: .*; figures are far out of range: change"
    ) as caught:
        prepare(parse({**TINY, "costs": {"utilisation": 1e-320}}))
    assert exit_code(caught.value) == 2


def test_a_file_that_cannot_be_loaded_is_the_users(write):
    for text, said in (("1 / 0\n", r"ZeroDivisionError: .* \(.*\.py, line 1, in <module>: 1 / 0\); mend the file"),
                       ("class Mine(:\n", r"SyntaxError: .*line 1\)")):  # fmt: skip
        with pytest.raises(UserCodeError, match=said) as caught:
            parse({**TINY, "strategy": f"{write(text)}:Mine"})
        assert exit_code(caught.value) == 7


def test_a_plugin_that_pip_installed_is_the_users_and_a_library_that_it_calls_is_not(write, tmp_path):
    """Its files are in ``site-packages``, like those of any library."""
    number = next(NUMBERS)
    write("def divide():\n    return 1 / 0\n", f"site-packages.library_{number}")
    text = METHOD.replace("    after = ", f"    from library_{number} import divide\n\n    divide()\n    after = ", 1)
    assert text != METHOD
    write(text, f"site-packages.plugin_{number}.methods")
    write("", f"site-packages.plugin_{number}.__init__")
    sys.path.append(str(Path.cwd() / "site-packages"))
    error = fail(tmp_path / "run", {"strategy": f"plugin_{number}.methods:Mine"})
    said = str(blamed(error))
    assert exit_code(error) == 7 and re.search(r"site-packages/plugin_\d+/methods\.py, line \d+, in damped", said)
    assert said.startswith("ZeroDivisionError: division by zero (")
    write("1 / 0\n", f"site-packages.broken_{number}")
    with pytest.raises(UserCodeError, match=r"broken_\d+\.py, line 1, in <module>: 1 / 0"):
        parse({**TINY, "strategy": f"broken_{number}:Mine"})


def test_a_library_that_nobody_configured_stays_no_users(write, ready):
    name = write("def rests(context):\n    return 1 / 0\n", f"site-packages.library_{next(NUMBERS)}").split(".")[1]
    sys.path.append(str(Path.cwd() / "site-packages"))
    with pytest.raises(ZeroDivisionError) as caught:
        guarded.guarded(
            replace(ready.strategy, insight=federated.Insight(rests=import_module(name).rests))
        ).insight.rests(None)
    assert blamed(caught.value) is None
    take_as_users([f"{name}.part"])
    assert blamed(caught.value) is not None


@pytest.mark.slow
def test_a_resumed_run_is_the_one_that_never_failed(write, tmp_path, monkeypatch):
    name = write(METHODS["NaN at the server"].text)
    fail(tmp_path / "failed", {"strategy": f"{name}:Mine"})
    monkeypatch.setenv("WORKS", "1")
    go_on(*reopen(tmp_path / "failed"))
    go_on(*create(parse({**TINY, "strategy": f"{name}:Mine"}), tmp_path / "whole"))
    ends = [[r.model_sha256 for r in read_rounds(tmp_path / run)] for run in ("failed", "whole")]
    assert ends[0] == ends[1]


def test_methods_of_ours_are_not_wrapped_and_a_users_partial_is():
    for preset in PRESETS.values():
        plain = preset.build()
        assert guarded.guarded(plain).aggregate is plain.aggregate and guarded.guarded(plain).client == plain.client
    assert users_function(federated.single_model) is None and users_function(len) is None
    assert users_function(partial(federated.single_model, fail)) is fail


def test_an_error_whose_text_fails(ready):
    class Mute(Exception):
        def __str__(self):
            raise ValueError

    def speechless(*arguments):
        raise Mute

    with pytest.raises(Mute) as caught:
        guarded.guarded(replace(ready.strategy, insight=federated.Insight(rests=speechless))).insight.rests(None)
    assert "Mute: no message, since its __str__ raised ValueError" in str(blamed(caught.value))


def test_a_weight_may_be_a_tensor_of_one_value(ready):
    def weigh(value):
        strategy = replace(ready.strategy, reduction=WeightedSum(weight=lambda *_: value, bucket=one_bucket))
        return guarded.guarded(strategy).reduction.weight(None, ready.fleet[0], None)

    assert weigh(torch.tensor(2.0)) == 2.0
    with pytest.raises(UserCodeFailed, match=r"reduction\.weight returned -1 for client 0, expected a number"):
        weigh(-1)
