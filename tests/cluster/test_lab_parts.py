"""Parts of the lab that need neither root nor namespaces: plans, lines, quotas in files, processes by id."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from actors.cli.main import app
from relief_ray.support.errors import UserError
from tests.lab import lab
from tests.lab.__main__ import app as lab_app
from tests.lab.cgroup import Controller, find_controller
from tests.lab.members import missing_of
from tests.lab.plan import GCS_PORT, HEAD, HOME, environment, make_plan, ray_line
from tests.lab.state import Node, Place, Process, State, end, marked

ROOT = Path(__file__).parents[2]


def command(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "tests.lab", *words], cwd=ROOT, capture_output=True, text=True)


def test_a_plan_is_the_head_and_what_was_named():
    head, a, old, watch = make_plan(["a:3", "old=c:2", "watch2:4"], num_cpus=2, store_mib=100)
    assert head.name == HEAD and head.resources == {"server": 1} and head.num_cpus == 2
    assert (
        watch.resources == {"type_watch": 4}
        and a.resources == {"type_a": 3}
        and old.resources == {"type_c": 2}
        and old.store_mib == 100
    )
    assert len({head.address, a.address, old.address}) == 3


@pytest.mark.parametrize("word", ["1:1", "a:0", "A", "a=D", "a:-1", "a:1:1", "averylongname=a", "", "a,b"])
def test_a_word_that_is_no_node_is_refused(word):
    with pytest.raises(UserError, match=r"expected NAME\[=TYPE\]\[:COUNT\]"):
        make_plan([word])


def test_names_are_given_once_and_the_head_is_there_already():
    for words in (["a", "a"], ["head=a"]):
        with pytest.raises(UserError, match="is taken"):
            make_plan(words)
    with pytest.raises(UserError, match="found 0"):
        make_plan([])


def test_nodes_are_started_by_our_own_command():
    head, a = make_plan(["a:3"], num_cpus=2)
    program, *words = ray_line(a, head)
    assert program == "relief-ray" and words[:3] == ["cluster", "join", head.address]
    said = CliRunner().invoke(app, [*words, "--print", "--insecure"]).stdout
    assert '{"type_a": 3}' in said and f"--node-ip-address={a.address}" in said and "--num-cpus=2" in said
    said = CliRunner().invoke(app, [*ray_line(head, head)[1:], "--print", "--insecure"]).stdout
    assert f"--port={GCS_PORT} " in said and "--head" in said


def test_a_nodes_variables_are_its_own():
    there = environment("/venv/bin", "/checkout", None)
    assert there["HOME"] == HOME and there["RAY_AUTH_MODE"] == "token" and "RELIEF_DATA" not in there
    assert environment("/venv/bin", "/checkout", "/data")["RELIEF_DATA"] == "/data"


def test_quotas_are_written_as_each_version_reads_them(tmp_path):
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    for version, name, limited, free in (
        (1, "cpu.cfs_quota_us", "40000", "-1"),
        (2, "cpu.max", "40000 100000", "max 100000"),
    ):
        controller = Controller(version=version, root=tmp_path)
        controller.create("one")
        controller.limit("one", 40)
        assert (tmp_path / "one" / name).read_text() == limited
        controller.limit("one", None)
        assert (tmp_path / "one" / name).read_text() == free
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    assert controller.groups("on") == ["one"] and controller.groups("two") == []


def test_the_controller_is_looked_up_among_the_mounts(tmp_path):
    old = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0"
    new = f"cgroup2 {tmp_path} cgroup2 rw 0 0"
    assert find_controller(f"tmpfs /tmp tmpfs rw 0 0\n{old}") == Controller(
        version=1, root=Path("/sys/fs/cgroup/cpu,cpuacct")
    )
    with pytest.raises(UserError, match="no cgroup with the controller 'cpu'"):
        find_controller(new)
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io\n")
    assert find_controller(new) == Controller(version=2, root=tmp_path)
    assert find_controller(f"{new}\n{old}").version == 1


def test_an_id_that_another_process_has_now_is_left_alone():
    mine = Process.of(os.getpid())
    recycled = Process(pid=mine.pid, start_ticks=mine.start_ticks - 1)
    assert mine.is_alive and not recycled.is_alive
    recycled.kill()  # this test goes on
    child = subprocess.Popen(["sleep", "60"])
    process = Process.of(child.pid)
    assert end([process, recycled]) == [] and not process.is_alive
    assert child.wait() == -9


def test_holders_that_no_file_names_are_found_by_their_mark(tmp_path):
    place = Place("one", tmp_path)
    child = subprocess.Popen(["sleep", "60"], env={"RELIEF_LAB": str(tmp_path / "one")})
    try:
        # Until it has become `sleep`, it has this process' variables.
        while b"sleep" not in Path(f"/proc/{child.pid}/cmdline").read_bytes():
            pass
        assert marked(place) == [Process.of(child.pid)]
        assert marked(Place("two", tmp_path)) == []
    finally:
        child.kill()
        child.wait()


def test_a_change_is_kept_even_if_an_error_follows(tmp_path):
    place = Place("one", tmp_path)
    place.folder.mkdir()
    (plan, _) = make_plan(["a"])
    place.write(State(nodes={"head": Node(plan=plan)}))
    with pytest.raises(RuntimeError), place.changing() as state:
        state.nodes["head"].quota_percent = 7
        raise RuntimeError
    assert place.read().nodes["head"].quota_percent == 7
    assert State.model_validate_json(place.read().model_dump_json()) == place.read()


def test_errors_name_the_fix(tmp_path):
    with pytest.raises(UserError, match="at most 8 small letters"):
        Place("No Lab")
    with pytest.raises(UserError, match="not up"):
        Place("one", tmp_path).read()
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "lab.json").write_text("{")
    with pytest.raises(UserError, match="remove the lab with `down`"):
        Place("one", tmp_path).read()
    with pytest.raises(UserError, match="expected one of head"):
        lab.nodes_of(State(nodes={"head": Node(plan=make_plan(["a"])[0])}), "a,b")


def test_all_are_all_but_the_head():
    state = State(nodes={node.name: Node(plan=node) for node in make_plan(["a", "b"])})
    for words, names in (("all", ["a", "b"]), ("head,a", ["head", "a"])):
        assert [node.plan.name for node in lab.nodes_of(state, words)] == names


def test_without_root_nothing_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match=r"needs root .* found user id 1000; use sudo"):
        lab.up(Place("noroot", tmp_path), make_plan(["a"]))
    assert not (tmp_path / "noroot").exists()


def test_a_users_error_is_one_line():
    done = command("status", "--lab", "absent")
    assert (
        done.returncode == 2 and done.stderr.startswith("error: lab 'absent': not up") and "\n" not in done.stderr[:-1]
    )


def test_a_node_is_a_member_when_ray_says_that_it_lives():
    rows = [
        {"NodeManagerAddress": "10.77.0.1", "Alive": True},
        {"NodeManagerAddress": "10.77.0.11", "Alive": False},
        {"NodeManagerAddress": "10.77.0.12", "Alive": False},
        {"NodeManagerAddress": "10.77.0.12", "Alive": True},
    ]
    assert missing_of(rows, ["10.77.0.1", "10.77.0.11", "10.77.0.12"]) == ["10.77.0.11"]


def test_the_page_says_what_the_lab_takes():
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    lines = re.findall(r"^sudo python -m tests\.lab (.+)$", page, flags=re.M)
    commands = {shlex.split(line, comments=True)[0] for line in lines}
    assert commands == {
        "up", "head", "node", "wait-ready", "exec", "shape", "quota", "cut", "kill", "status", "down"
    }  # fmt: skip
    for line in lines:
        root = typer.main.get_command(lab_app)
        for command in root.commands.values():
            command.callback = lambda **_: None
        with pytest.raises(SystemExit) as end:
            root.main(shlex.split(line, comments=True), prog_name="lab")
        assert end.value.code == 0, line
