"""The line `ray start`: fixed ports, bounds, device, token, health check; and what is refused before it."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from actors.cluster.start_line import HEALTH_CHECK, Capacity, NodeOptions, Versions, head_line, join_line, refuse_other
from actors.runtime import tokens
from relief_ray.support.errors import UserError

CAPACITY = Capacity(num_cpus=4, num_gpus=1, memory_mib=2048, object_store_mib=256)
NODE = NodeOptions(host="10.0.0.5", capacity=CAPACITY, token=Path("/etc/relief/ray_token"))


@pytest.fixture(autouse=True)
def no_variables():
    """No variables of Ray's; those that a command sets are gone after the test."""
    before = dict(os.environ)
    for name in [n for n in os.environ if n.startswith("RAY_")]:
        del os.environ[name]
    yield
    os.environ.clear()
    os.environ.update(before)


def a_head(**changes):
    return head_line(replace(NODE, **changes), port=6379, dashboard_host="127.0.0.1", dashboard_port=8265)


def options_of(line):
    """The options as Ray's own command reads them: an option that it does not know is an error."""
    from ray.scripts.scripts import start

    context = start.make_context("start", list(line.arguments[2:]))
    return context.params


def test_a_heads_line_is_one_that_ray_understands():
    options = options_of(a_head())
    assert options["head"] and options["block"] and options["port"] == 6379 and options["include_dashboard"]
    assert options["node_ip_address"] == "10.0.0.5" and options["dashboard_host"] == "127.0.0.1"
    assert (options["num_cpus"], options["num_gpus"]) == (4, 1)
    assert (options["memory"], options["object_store_memory"]) == (2048 * 2**20, 256 * 2**20)
    assert json.loads(options["resources"]) == {"server": 1} and options["labels"] == "device=server"


def test_a_devices_line_offers_what_placement_asks_for():
    options = options_of(join_line(NODE, "10.0.0.1:6379", "c", 3))
    assert not options["head"] and options["block"] and options["address"] == "10.0.0.1:6379"
    assert json.loads(options["resources"]) == {"type_c": 3} and options["labels"] == "device=type_c"
    bare = options_of(join_line(NODE, "10.0.0.1:6379", None, 1))
    assert bare["resources"] == "{}" and bare["labels"] == "device=cores"


def test_any_type_joins_in_lower_case_and_what_is_no_name_is_refused():
    options = options_of(join_line(NODE, "10.0.0.1:6379", "Watch", 2))
    assert json.loads(options["resources"]) == {"type_watch": 2} and options["labels"] == "device=type_watch"
    with pytest.raises(UserError, match=r"--type 2nd watch: expected a name of letters, digits and _"):
        join_line(NODE, "10.0.0.1:6379", "2nd watch", 1)


def test_every_port_is_fixed_within_one_range_and_used_once():
    options = options_of(a_head(first_port=20000))
    ports = [value for name, value in options.items() if name.endswith("_port") and name != "port"]
    assert None not in ports and 0 not in ports
    inside = [p for p in ports if p != 8265]
    assert len(set(ports)) == len(ports) and min(inside) == 20000 and max(inside) == 20199
    services = [p for n, p in options.items() if n.endswith("_port") and "worker" not in n]
    assert not [p for p in services if options["min_worker_port"] <= p <= options["max_worker_port"]]


def test_only_the_head_asks_whether_nodes_are_well():
    assert HEALTH_CHECK.items() <= a_head().variables.items()
    assert not set(HEALTH_CHECK) & set(join_line(NODE, "10.0.0.1:6379", "a", 1).variables)


def test_ray_knows_the_names_of_the_health_check():
    """A name that Ray does not know would be ignored, and a silent node counted as lost after 65 s."""
    from ray._raylet import Config

    for name in HEALTH_CHECK:
        assert hasattr(Config, name.removeprefix("RAY_")), name


def test_the_users_own_variables_win(monkeypatch):
    monkeypatch.setenv("RAY_health_check_period_ms", "5000")
    assert "RAY_health_check_period_ms" not in a_head().variables


def test_every_node_shows_the_token_and_compares_python_by_its_minor_version():
    for line in (a_head(), join_line(NODE, "10.0.0.1:6379", "a", 1)):
        assert line.variables["RAY_AUTH_MODE"] == "token"
        assert line.variables["RAY_AUTH_TOKEN_PATH"] == "/etc/relief/ray_token"
        assert line.variables["RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL"] == "minor"
        assert line.text().startswith("RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=/etc/relief/ray_token ")
    assert a_head(token=None).variables["RAY_AUTH_MODE"] == "disabled"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"first_port": 8200}, r"--dashboard-port 8265: lies within --ports 8200 to 8399"),
        ({"first_port": 6300}, r"--port 6379: lies within --ports 6300"),
        ({"first_port": 65400}, r"--ports 65400: the ports 65400 to 65599, expected 200 of 1024 to 65535"),
        ({"temp_dir": Path("/a/long/folder/for/sockets/and/logs")}, r"35 characters, expected at most 30"),
    ],
)
def test_a_line_that_ray_would_fail_with_is_refused(change, why):
    with pytest.raises(UserError, match=why):
        a_head(**change)


def test_a_token_is_made_once_and_for_its_owner_alone(tmp_path):
    path = tmp_path / "new" / "token"
    assert tokens.make_token(path)
    text = path.read_text()
    assert len(text) == 64 and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not tokens.make_token(path) and path.read_text() == text


@pytest.mark.parametrize(
    ("mode", "text", "why"),
    [(0o644, "secret", "mode 0644, others may use"), (0o660, "secret", "mode 0660"), (0o600, " \n", "is empty")],
)
def test_a_token_that_others_may_read_is_refused(tmp_path, mode, text, why):
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(UserError, match=why):
        tokens.make_token(path)
    with pytest.raises(UserError, match=r"no such file(.|\n)*scp HEAD"):
        tokens.check_token(tmp_path / "absent")


def test_a_node_without_a_token_is_refused_unless_the_user_insists(monkeypatch):
    tokens.refuse_open(insecure=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(UserError, match=r"RAY_AUTH_MODE=disabled: a node without a token.*all interfaces.*--insecure"):
        tokens.refuse_open(insecure=False)
    tokens.refuse_open(insecure=True)


def test_a_command_shows_the_token_that_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    tokens.use_token(None)
    assert "RAY_AUTH_MODE" not in os.environ, "a cluster without token is joined as before"
    tokens.make_token(tmp_path / ".ray" / "auth_token")
    tokens.use_token(None)
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / ".ray" / "auth_token")


def test_a_token_in_the_environment_is_shown(monkeypatch):
    """As Kubernetes gives it to a pod, from a secret."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    tokens.use_token(None)
    assert os.environ["RAY_AUTH_MODE"] == "token" and "RAY_AUTH_TOKEN_PATH" not in os.environ


def test_a_named_token_replaces_one_in_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "other")
    tokens.make_token(tmp_path / "token")
    tokens.use_token(tmp_path / "token")
    assert "RAY_AUTH_TOKEN" not in os.environ and os.environ["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / "token")


@pytest.mark.parametrize(
    ("here", "there", "why"),
    [
        (("2.60.0", "3.11.7"), ("2.60.0", "3.11.2"), None),
        (("2.60.0", "3.10.12"), ("2.60.0", "3.11.2"), r"runs Python 3.11.2, this machine has 3.10.12; expected 3.11.x"),
        (("2.60.1", "3.11.7"), ("2.60.0", "3.11.7"), r"runs Ray 2.60.0, this machine has 2.60.1"),
    ],
)
def test_versions_are_compared_before_a_node_joins(here, there, why):
    if why is None:
        refuse_other(Versions(*here), Versions(*there), "10.0.0.1:6379")
    else:
        with pytest.raises(UserError, match=why):
            refuse_other(Versions(*here), Versions(*there), "10.0.0.1:6379")


JOIN = """
import os, sys
import typer

class Seen:
    def find_spec(self, name, path=None, target=None):
        if name == "ray":
            print("at the import:", os.environ.get("RAY_AUTH_MODE"), os.environ.get("RAY_AUTH_TOKEN_PATH"))

sys.meta_path.insert(0, Seen())
from actors.cli.main import app
app(["cluster", "join", "127.0.0.1:1", "--token", sys.argv[1]], standalone_mode=False)
"""


@pytest.mark.ci
def test_a_node_names_its_token_before_ray_reads_where_it_is(tmp_path):
    """Ray reads the variables once, when it is imported."""
    token = tmp_path / "token"
    token.write_text("a" * 64)
    token.chmod(0o600)
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    done = subprocess.run(
        [sys.executable, "-c", JOIN, str(token)], env=env, text=True, capture_output=True, timeout=120
    )
    assert f"at the import: token {token}" in done.stdout, done.stderr[-2000:]
