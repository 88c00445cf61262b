"""A user's file goes where the work is: other processes need no copy of it and run no other version."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from actors.runtime.serialization import install
from relief_ray.config.experiment import parse
from relief_ray.core.federated import RoundVoid
from relief_ray.plugins.load import SourceFile, load, sources
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.support.errors import UserCodeFailed, UserError
from tests.conformance.cases import BASE, THREE, config_of, drive, outcome
from tests.faulty import METHODS, judge
from tests.own import METHOD

PROBE = """
import sys
from actors.runtime.serialization import install
from relief_ray.plugins.load import SourceFile
files = [SourceFile(name=f"{sys.argv[1]}.py", content=open(sys.argv[2], "rb").read(), origin=sys.argv[2])]
install([sys.argv[1]], files)
module = sys.modules[sys.argv[1]]
print(module.__file__, module.VALUE)
install([sys.argv[1]], [SourceFile(name=f"{sys.argv[1]}.py", content=b"VALUE = 'second'", origin=sys.argv[2])])
print(sys.modules[sys.argv[1]].VALUE)
"""


@pytest.mark.ci
def test_another_process_gets_the_file_and_its_next_version(write, tmp_path):
    module = write("VALUE = 'first'\n")
    command = [sys.executable, "-c", PROBE, module, f"{Path.cwd() / module}.py"]
    env = {**os.environ, "RELIEF_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(Path(__file__).parents[3])}
    lines = subprocess.run(command, cwd=tmp_path, env=env, text=True, capture_output=True, check=True).stdout.split()
    assert Path(lines[0]).is_relative_to(tmp_path / "cache") and lines[1:] == ["first", "second"]
    assert len(list((tmp_path / "cache" / "modules").iterdir())) == 2


def test_what_is_here_already_is_left_alone(write, tmp_path, monkeypatch):
    monkeypatch.setenv("RELIEF_CACHE", str(tmp_path / "cache"))
    module = write("VALUE = 1\n")
    load(f"{module}:VALUE", "x")
    before = sys.modules[module]
    install([module], sources([module]))
    assert sys.modules[module] is before and not (tmp_path / "cache").exists()


def test_a_module_that_the_host_takes_from_elsewhere_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RELIEF_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(UserError, match=r"other sources .* than the driver's .*; rename the module"):
        install(["sys"], [SourceFile(name="sys.py", content=b"", origin="sys.py")])


@pytest.mark.ci
@pytest.mark.ray
@pytest.mark.parametrize("layout", [{"num_hosts": 2}, {"mode": "actors"}], ids=["packed", "actors"])
@pytest.mark.usefixtures("run_cache", "cluster")
def test_hosts_of_a_built_in_strategy_go_on_with_a_users_strategy(write, on_warm_hosts, layout, tmp_path):
    """The cluster's processes were started elsewhere, before the file existed."""
    path = f"{write(METHOD)}:Mine"
    config = parse({**BASE, "strategy": {"name": path, "alpha": 0.25}, "data": THREE})
    drive(config, tmp_path / "plain")

    def make(job):
        return on_warm_hosts(job, **layout)

    drive(config_of("fedavg", data=THREE), tmp_path / "ours", make)
    drive(config, tmp_path / "ray", make)
    assert outcome(tmp_path / "ray") == outcome(tmp_path / "plain")


# Functions that hosts run: those of the client, and the weights and names of the sums that they add up.
IN_HOSTS = (
    "refine returns nothing", "no loss", "observe returns numbers", "after raises", "after returns nothing",
    "a weight of NaN", "a bucket without a name",
)  # fmt: skip


@pytest.mark.ci
@pytest.mark.ray
@pytest.mark.parametrize("layout", [{"num_hosts": 2}, {"mode": "actors"}], ids=["packed", "actors"])
@pytest.mark.usefixtures("run_cache", "cluster")
def test_a_function_at_fault_in_a_host_is_named_as_in_one_process(write, on_warm_hosts, layout, tmp_path):
    for which in IN_HOSTS:
        fault, place = METHODS[which], tmp_path / which
        name = write(fault.text)
        config = parse({**BASE, "strategy": f"{name}:Mine", "data": THREE})
        with pytest.raises(UserCodeFailed) as caught:
            drive(config, place, lambda job: on_warm_hosts(job, **layout))
        judge(caught.value, fault, name)
        assert f"({Path.cwd() / name}.py, line" in str(caught.value), "the user's own file, not the host's copy of it"
        assert len(read_rounds(place)) == fault.round - 1 and fault.said in read_run(place).note


HANGS = (
    METHOD
    + """

def stuck(step):
    import time

    if step.args:
        while True:
            time.sleep(0.1)
    return step.logits.logsumexp(1).mean()


class Stuck(Mine):
    def build(self):
        from dataclasses import replace

        from relief_ray.core.client import ClientProgram

        return replace(super().build(), allocate=with_arguments, client=ClientProgram(objective=stuck))


def with_arguments(state, context):
    from dataclasses import replace

    tasks = allocate_everything(state, context)
    return tuple(replace(task, args={"hangs": 1.0} if task.client == 2 else {}) for task in tasks)
"""
)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("run_cache", "cluster")
def test_a_hang_in_a_users_function_ends_at_its_limit_and_names_the_line(write, on_ray, tmp_path):
    path = f"{write(HANGS)}:Stuck"
    config = parse({**BASE, "strategy": path, "data": THREE})
    settings = {"mode": "actors", "client_timeout_s": 4.0, "on_timeout": "drop", "lost_wait_s": 1.0}
    told = (
        r"no answer within 4.* s(, when the round's time was over)? \(it was in .*\.py, line \d+, in stuck: time\.sleep"
    )
    with pytest.raises(RoundVoid, match=told):
        drive(config, tmp_path / "ray", lambda job: on_ray(job, **settings))
