"""Ray for the length of a run: a small private cluster, or an existing one."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from actors.runtime.tokens import use_token
from relief_ray.plugins.blame import unchanged
from relief_ray.support.errors import CoordinatorLost, UserError, first_line

# Processes of a private Ray cluster: what signals they hear, which there are, and how they are ended.
#
# A signal for the whole process group (``timeout``) or control group (systemd, Slurm) reaches Ray's processes as well
# as this one. They would die first, and the run could neither save its state nor say how to go on.

# Ray itself does the same for SIGINT.
_NOT_THEIRS = frozenset({signal.SIGTERM, signal.SIGHUP})


# Set inside of ``shielded``.
_is_shielded = threading.Event()


def _block_in_child() -> None:
    """Block the signals in a child of this process, before it runs another program."""
    if _is_shielded.is_set():
        signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_THEIRS)


os.register_at_fork(after_in_child=_block_in_child)


@contextmanager
def shielded() -> Iterator[None]:
    """Inside the block, processes that are started never hear SIGTERM and SIGHUP, nor do their children."""
    _is_shielded.set()
    try:
        yield
    finally:
        _is_shielded.clear()


def family(folder: Path) -> list[psutil.Process]:
    """Children of this process that were started for the Ray cluster in ``folder``, and all that descend from them."""
    members: list[psutil.Process] = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if f"{folder}/" in " ".join(child.cmdline()):
                members += [child, *child.children(recursive=True)]
    return members


def end(processes: Iterable[psutil.Process]) -> None:
    """Kill those that are still there, stopped ones too; a later process with the same number is left alone."""
    for process in processes:
        with suppress(psutil.Error):
            process.kill()


# Ends the wait for a Ray that does not answer: its head (GCS), or the process of the driver's own node (raylet).
#
# Calls into Ray return only once these answer, so two threads look after them. One keeps asking the head for its nodes;
# the other counts the seconds of silence, and those in which the node's process was stopped.

# Ray gives up a head after 60 s of silence, by ending the driver without a word.
_FROZEN_S = 30.0
_EVERY_S, _LOOK_S, _LEAVE_S = 5.0, 0.5, 1.0
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


@dataclass(kw_only=True)
class HeadWatch:
    """Watches the head and the driver's node; calls ``on_lost`` once, with a sentence, where one has been silent."""

    on_lost: Callable[[str], None]
    """Called in a thread of its own."""
    frozen_s: float = _FROZEN_S
    """Seconds of silence, counted while this process runs: a suspended driver hears nobody."""
    silent_s: float = 0.0
    """Seconds since the head's last answer."""
    stopped_s: float = 0.0
    """Seconds since the node's process was last running."""
    _raylet: psutil.Process | None = None
    _is_dead: bool = False
    _closed: threading.Event = field(default_factory=threading.Event)
    _asking: threading.Thread | None = None

    def __enter__(self) -> None:
        """Begin to watch; Ray is up."""
        self._asking = threading.Thread(target=self._ask, name="head-watch-asks", daemon=True)
        self._asking.start()
        threading.Thread(target=self._judge, name="head-watch-judges", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        """Stop watching: nothing may ask Ray while it is shut down."""
        self._closed.set()
        if self._asking is not None:
            self._asking.join(_LEAVE_S)

    def _ask(self) -> None:
        import ray

        here = ray.get_runtime_context().get_node_id()
        while True:
            # An error is an answer's absence: the other thread counts.
            with suppress(Exception):
                mine = next((node for node in ray.nodes() if node["NodeID"] == here), None)
                self.silent_s = 0.0
                self._is_dead = mine is not None and not mine["Alive"]
                if self._raylet is None and mine is not None:
                    self._raylet = _raylet_at(str(mine["RayletSocketName"]))
            if self._closed.wait(_EVERY_S):
                return

    def _judge(self) -> None:
        last_s = time.monotonic()
        while not self._closed.wait(_LOOK_S):
            now_s = time.monotonic()
            passed_s, last_s = min(now_s - last_s, 4 * _LOOK_S), now_s
            self.silent_s += passed_s
            self.stopped_s = self.stopped_s + passed_s if self._is_stopped() else 0.0
            if (why := self._why()) is not None:
                self.on_lost(why)
                return

    def _is_stopped(self) -> bool:
        with suppress(psutil.Error):
            return self._raylet is not None and self._raylet.is_running() and self._raylet.status() in _STOPPED
        return False

    def _why(self) -> str | None:
        if self._is_dead:
            return "Ray's process of this machine (raylet) has ended, or its head does not hear it any more"
        if self.stopped_s > self.frozen_s:
            return f"Ray's process of this machine (raylet) has been frozen for {self.frozen_s:g} s"
        if self.silent_s > self.frozen_s:
            return f"Ray's head (GCS) has not answered for {self.frozen_s:g} s"
        return None


def _raylet_at(socket_name: str) -> psutil.Process | None:
    """The node's process that listens at a socket."""
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "raylet" and socket_name in " ".join(process.info["cmdline"] or ()):
            return process
    return None


# The session itself.

MIB = 2**20
# Ray's sockets lie about 75 characters below its folder, and a socket's path has at most 107.
MAX_FOLDER_LENGTH = 30
_RAY = "r"
# Length of `/rr-PID-RANDOM/r`.
_NAME_LENGTH = 22
_CONNECT_S = 10.0
_START_TIMEOUT = "timed out during startup"
_THREADS, _HIDDEN = "OMP_NUM_THREADS", {"CUDA_VISIBLE_DEVICES": ""}
# What our own cluster's processes were started with: Ray starts one anew for each that asks for another environment.
_INHERITED = "RELIEF_RAY_THREADS"


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionOptions:
    """``address`` joins a cluster; without it a local one is started and stopped, whose node offers ``resources``.

    ``resume``: the command that goes on where none comes up.
    """

    address: str | None = None
    num_cpus: int | None = None
    object_store_mib: int = 256
    dashboard: bool = False
    resources: Mapping[str, float] = field(default_factory=dict)
    resume: str = ""


def total_of(amounts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Resources of nodes, or of the demands of processes, together."""
    total: dict[str, float] = {}
    for resources in amounts:
        for name, amount in resources.items():
            total[name] = total.get(name, 0.0) + amount
    return total


# Folders of clusters that this process has started, each with the descriptor that holds its lock, if it has one.
_private_folders: dict[Path, int | None] = {}


def owns_cluster() -> bool:
    """Whether the cluster that this process uses is one that it has started for itself."""
    return bool(_private_folders)


@contextmanager
def ray_session(options: SessionOptions, on_lost: Callable[[str], None] | None = None) -> Iterator[str | None]:
    """Make Ray usable inside the block; a cluster that was started here is stopped, any other is left running.

    Yields the dashboard's address with its token, where a dashboard was requested and started here. ``on_lost`` hears,
    in another thread, where Ray's head or the node's own process does not answer any more: nothing here would return.

    Raises:
        UserError: the cluster at ``address`` cannot be joined, or others may read its token here.
        CoordinatorLost: a cluster of this machine's own does not come up.
    """
    if options.address and "ray" not in sys.modules:
        # Where Ray was imported before, it would not look at what is set now.
        use_token(None)
    # Set before Ray is imported: it reads them then.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0")
    import ray

    if ray.is_initialized():
        yield None
        return
    folder = None if options.address else short_folder()
    before = {name: os.environ.get(name) for name in (_THREADS, _INHERITED)}
    url = None
    try:
        with _own_handlers():
            if folder is None:
                _join(str(options.address))
            else:
                url = _start(folder, options)
        with nullcontext() if on_lost is None else HeadWatch(on_lost=on_lost):
            yield url
    finally:
        _stop(folder)
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Keep this process's handlers of signals: Ray ends it on SIGTERM; how a run is stopped is not its business.

    Ray's handler raises ``SystemExit`` wherever Python is: in a callback of the import system, say, it would be lost
    and the run go on. Ray knows no option for it; one without this function is in charge of SIGTERM until it has
    started, and its handler is replaced then.
    """
    from ray._private import utils

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    install = getattr(utils, "set_sigterm_handler", None)
    if install is not None:
        utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        if install is not None:
            utils.set_sigterm_handler = install
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _stop(folder: Path | None) -> None:
    """Leave the cluster; end all processes of a private one, those too that do not answer, and remove its folder."""
    import ray

    members = [] if folder is None else family(folder)
    node = getattr(ray._private.worker, "_global_node", None)
    if members and node is not None:
        # Ray would ask each of them to end and wait a second: they do not hear it.
        at_once = node.kill_all_processes
        node.kill_all_processes = lambda **_: at_once(check_alive=False, allow_graceful=False)
    ray.shutdown()
    _clear(folder, members)


def _clear(folder: Path | None, members: list[psutil.Process]) -> None:
    """End what is left of a private cluster and remove its folder."""
    end(members)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
        if (lock := _private_folders.pop(folder, None)) is not None:
            os.close(lock)


def abandon() -> None:
    """End the processes of this process's private cluster without a word to Ray, which may not answer any more.

    The node's own (raylet) comes last: a thread of this process that waits for it is in Ray's hands, which end the
    process with a code of theirs as soon as it is gone. The caller has to leave at once.
    """
    for folder in list(_private_folders):
        members = family(folder)
        nodes = [member for member in members if _is_node(member)]
        _clear(folder, [member for member in members if member not in nodes])
        end(nodes)


def _is_node(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.name() == "raylet"
    return False


def _start(folder: Path, options: SessionOptions) -> str | None:
    import ray

    from relief_ray.support.process import num_cores  # loads torch, which `--help` does without

    ours = not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ)
    if ours:
        # Strangers on the machine stay out, and Ray writes no token to the home folder. It stays for the whole process:
        # Ray reads it once.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    os.environ[_INHERITED] = os.environ.setdefault(_THREADS, "1")
    try:
        with shielded(), unchanged():
            context = ray.init(
                address="local",
                num_cpus=options.num_cpus or num_cores(),
                resources=dict(options.resources),
                object_store_memory=options.object_store_mib * MIB,
                include_dashboard=options.dashboard,
                log_to_driver=False,
                logging_level=logging.ERROR,
                # Ray makes its folder writable for everybody: it lies inside of one that only this user may enter.
                _temp_dir=str(folder / _RAY),
            )
    except Exception as error:
        # Ray knows no class of its own for it, and no option to wait for longer than its 30 s.
        if _START_TIMEOUT not in str(error):
            raise
        again = f"go on with `{options.resume}`" if options.resume else "type the command again"
        raise CoordinatorLost(
            f"Ray's local cluster was not up within its 30 s; expected a machine with a core to spare, found a load of "
            f"{os.getloadavg()[0]:.1f} on {num_cores()} cores; nothing is lost: {again} when less else runs here, or "
            "join a cluster that is up: runtime.address"
        ) from error
    if not options.dashboard or not context.dashboard_url:
        return None
    # As notebook servers do: it is worth nothing once this process has ended, and nobody else could know it.
    return f"http://{context.dashboard_url}" + (f" (its token: {os.environ['RAY_AUTH_TOKEN']})" if ours else "")


def process_options(num_threads: int, *, hide_gpus: bool) -> dict[str, Any]:
    """Ray's options of a process whose sums depend on ``num_threads``; empty where it inherits what it needs.

    Ray leaves all GPUs visible to processes that asked for none.
    """
    import ray

    threads = {} if os.environ.get(_INHERITED) == str(num_threads) else {_THREADS: str(num_threads)}
    variables = threads | (_HIDDEN if hide_gpus and "GPU" in ray.cluster_resources() else {})
    return {"runtime_env": {"env_vars": variables}} if variables else {}


def _join(address: str) -> None:
    """Join a cluster that is up."""
    import ray

    # Nodes may differ in Python's patch level, as `relief-ray cluster join` lets them.
    os.environ.setdefault("RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL", "minor")
    try:
        require_listener(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"runtime.address = {address!r}: cannot join ({first_line(error)}); expected a running Ray "
            "cluster of the same Ray and Python version, and its token in ~/.ray/auth_token or RAY_AUTH_TOKEN_PATH"
        ) from error


def require_listener(address: str) -> None:
    """Check that something listens at ``HOST:PORT``; Ray itself would wait for minutes.

    Raises:
        OSError: nothing does.
    """
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()


def short_folder() -> Path:
    """A new folder that only this user may enter, locked, in the usual place where its name is short enough.

    Folders of our own whose process was killed are removed: nothing else removes them.
    """
    usual = tempfile.gettempdir()
    place = Path(usual if len(usual) + _NAME_LENGTH <= MAX_FOLDER_LENGTH else "/tmp")
    for left in place.glob("rr-*-*"):
        with suppress(OSError):  # another process removed it, or holds it
            _sweep(left)
    folder = Path(tempfile.mkdtemp(prefix=f"rr-{os.getpid()}-", dir=place))
    lock = None
    with suppress(OSError):  # a file system without locks of folders: nobody can sweep there either
        lock = _locked(folder, fcntl.LOCK_EX)
    if not folder.exists():  # swept before it was locked
        return short_folder()
    _private_folders[folder] = lock
    return folder


def _sweep(folder: Path) -> None:
    """Remove a folder of our own whose owner is gone.

    The owner's number alone does not tell: it may count in another container that shares this place. Only the owner
    holds the folder's lock, and it does so until it ends.

    Raises:
        OSError: there is no such folder any more, or its lock is held.
    """
    owner = folder.name.split("-")[1]
    if owner.isdecimal() and folder.stat().st_uid == os.getuid() and not psutil.pid_exists(int(owner)):
        descriptor = _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _locked(folder: Path, operation: int) -> int:
    """Lock a folder and return the descriptor that holds the lock.

    Raises:
        OSError: another process holds it, there is no such folder, or its file system has no such lock.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, operation)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
