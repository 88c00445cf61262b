import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from actors.runtime import session
from actors.runtime.session import MAX_FOLDER_LENGTH, SessionOptions, _own_handlers, ray_session, short_folder
from relief_ray.support.errors import CoordinatorLost

ROOT = Path(__file__).parents[3]

STOPPED = """
import os, signal, threading, time
from pathlib import Path
from actors.runtime.session import SessionOptions, ray_session
from actors.terminal.exit_codes import exit_code

def stop_the_raylet():
    while True:
        for place in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                name = (place / "comm").read_text().strip()
            except OSError:
                continue
            if (name, parent) == ("raylet", os.getpid()):
                os.kill(int(place.name), signal.SIGSTOP)
                return
        time.sleep(0.01)

threading.Thread(target=stop_the_raylet, daemon=True).start()
try:
    with ray_session(SessionOptions(num_cpus=1, object_store_mib=100)):
        pass
except RuntimeError as error:
    print(exit_code(error), error)
"""

SIGNALLED = """
import os, signal, threading, time
import ray
from actors.runtime.session import SessionOptions, ray_session

heard, sent, is_up = [], [], threading.Event()
signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))

def send():
    while not is_up.wait(0.05):
        sent.append(signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

sender = threading.Thread(target=send, daemon=True)
sender.start()
with ray_session(SessionOptions(num_cpus=1, object_store_mib=100)):
    is_up.set()
    sender.join()
    print(ray.is_initialized(), bool(heard), len(sent) > 5)
"""


JOINING = """
import os
from actors.runtime import session

session._join = lambda address: print(os.environ.get("RAY_AUTH_MODE"), os.environ.get("RAY_AUTH_TOKEN_PATH"))
with session.ray_session(session.SessionOptions(address="10.0.0.1:6379")):
    from ray._raylet import AuthenticationMode, get_authentication_mode

    print(get_authentication_mode() == AuthenticationMode.TOKEN)
"""


@pytest.mark.ci
@pytest.mark.parametrize("mode", [0o600, 0o644, None])
def test_a_cluster_is_joined_with_the_token_that_is_there(tmp_path, mode):
    """As `run --address`, `grid`, `resume` and `conformance` do; Ray reads the variables once, when it is imported."""
    token = tmp_path / ".ray" / "auth_token"
    if mode is not None:
        token.parent.mkdir()
        token.write_text("a" * 64)
        token.chmod(mode)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    environment |= {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", JOINING], env=environment, capture_output=True, text=True, timeout=120)
    if mode == 0o644:
        assert "mode 0644, others may use the cluster's token" in done.stderr
    else:
        expected = ["None None", "False"] if mode is None else [f"token {token}", "True"]
        assert done.stdout.splitlines() == expected, done.stderr


@pytest.mark.ray
@pytest.mark.slow
def test_a_machine_too_busy_for_ray_is_told_to_the_user(tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", STOPPED], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180
    )
    assert done.stdout.startswith("9 Ray's local cluster was not up within its 30 s"), done.stdout + done.stderr


def test_the_advice_on_a_ray_that_does_not_start_names_the_folder(monkeypatch, tmp_path):
    def late(**options):
        raise RuntimeError(session._START_TIMEOUT)

    monkeypatch.setattr(ray, "init", late)
    for name in (session._THREADS, session._INHERITED, "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "1")
    for resume, advice in (
        ("relief-ray resume runs/a", "go on with `relief-ray resume runs/a`"),
        ("", "type the command"),
    ):
        with pytest.raises(CoordinatorLost, match=f"nothing is lost: {advice}"):
            session._start(tmp_path, SessionOptions(resume=resume))


@pytest.mark.ci
@pytest.mark.ray
def test_a_signal_while_ray_starts_is_the_commands_own(tmp_path):
    """Ray's handler would end the process, or be lost where Python cannot raise: the run would go on."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180
    )
    assert done.stdout == "True True True\n", done.stdout + done.stderr


def test_where_ray_lacks_the_function_nothing_is_put_in_its_place(monkeypatch):
    from ray._private import utils

    monkeypatch.delattr(utils, "set_sigterm_handler")
    before = signal.getsignal(signal.SIGTERM)
    with _own_handlers():
        assert not hasattr(utils, "set_sigterm_handler")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert not hasattr(utils, "set_sigterm_handler") and signal.getsignal(signal.SIGTERM) == before


@pytest.mark.ray
def test_a_session_offers_what_its_options_say_and_another_one_joins_it(cluster):
    """That it leaves nothing behind is shown where a run is stopped (test_launch)."""
    with ray_session(SessionOptions(num_cpus=1)):
        offered = ray.cluster_resources()
    assert ray.is_initialized() and (offered["CPU"], offered["type_b"]) == (3.0, 3.0)


def test_socket_folders_have_short_names(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/" + "x" * MAX_FOLDER_LENGTH)
    folder = short_folder()
    assert len(str(folder / "r")) <= MAX_FOLDER_LENGTH
    folder.rmdir()


def test_folders_of_killed_processes_are_swept_and_no_others(monkeypatch, tmp_path):
    monkeypatch.setattr("actors.runtime.session.MAX_FOLDER_LENGTH", 1000)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for name in (f"rr-{gone.pid}-dead", f"rr-{os.getpid()}-mine", "rr-bench-x", "rr-old"):
        (tmp_path / name).mkdir()
    made = short_folder()
    left = {p.name for p in tmp_path.iterdir()}
    assert left == {f"rr-{os.getpid()}-mine", "rr-bench-x", "rr-old", made.name}


HOLDING = """
import sys
from actors.runtime import session

session.MAX_FOLDER_LENGTH = 1000
folder = session.short_folder()
folder.rename(folder.with_name(sys.argv[1]))
print("holding", flush=True)
sys.stdin.read()
"""


def test_a_folder_of_another_container_is_kept_until_its_process_ends(monkeypatch, tmp_path):
    """Its number means nothing here; a folder that vanishes while all are looked at is no error."""
    monkeypatch.setattr("actors.runtime.session.MAX_FOLDER_LENGTH", 1000)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / f"rr-{gone.pid}-vanished").symlink_to(tmp_path / "nowhere")
    theirs = tmp_path / f"rr-{gone.pid}-theirs"
    line = [sys.executable, "-c", HOLDING, theirs.name]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout.readline() == "holding\n"
            short_folder()
            assert theirs.is_dir()
        finally:
            owner.kill()
    short_folder()
    assert not theirs.exists()


@pytest.mark.ray
def test_nobody_else_may_enter_rays_folder(cluster):
    """Ray itself makes it writable for everybody (its logs, and the socket of the object store)."""
    rays = Path(ray._private.worker._global_node.get_session_dir_path())
    private = next(folder for folder in rays.parents if folder.name.startswith("rr-"))
    assert stat.S_IMODE(private.stat().st_mode) == 0o700 and private.stat().st_uid == os.getuid()


@pytest.mark.ray
def test_an_address_without_a_cluster_is_named():
    script = (
        "from actors.runtime.session import *\nfrom relief_ray.support.errors import UserError\n"
        "try:\n    with ray_session(SessionOptions(address='127.0.0.1:1')): pass\n"
        "except UserError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, env=os.environ
    )
    assert "runtime.address = '127.0.0.1:1'" in done.stdout, done.stderr[-1000:]
