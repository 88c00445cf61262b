from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

from relief_ray.records.cells import look
from relief_ray.records.lock import LOCK_FILE, FileLock, is_folder_locked, lock_folder, owner
from relief_ray.records.run_folder import RunFolder
from relief_ray.support.errors import UserError


def test_one_owner_at_a_time(tmp_path):
    path = tmp_path / "lock"
    with FileLock(path, "it"):
        began = time.monotonic()
        with pytest.raises(UserError, match=rf"it is in use by process {os.getpid()} on .* since .*; wait for it"):
            FileLock(path, "it")
        assert time.monotonic() - began < 1.0
    FileLock(path, "it").release()


def test_waiting_gets_the_lock_when_it_is_released(tmp_path):
    first = FileLock(tmp_path / "lock", "it")
    timer = threading.Timer(0.2, first.release)
    timer.start()
    began = time.monotonic()
    FileLock(tmp_path / "lock", "it", wait_s=20.0).release()
    assert 0.1 < time.monotonic() - began < 10.0
    timer.join()


def test_an_unsigned_lock_has_an_unknown_owner(tmp_path):
    (tmp_path / "lock").write_text("{")
    assert owner(tmp_path / "lock") == owner(tmp_path / "missing") == "an unknown process"


def test_a_lock_in_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot lock: No such file"):
        FileLock(tmp_path / "missing" / "lock", "it")


@pytest.mark.ci
def test_a_second_driver_is_refused_until_the_first_is_killed(scenario, environment, finished, tmp_path):
    path = tmp_path / "run"
    scenario.drive(path, rounds=1)
    program = scenario.__spec__.origin
    line = [sys.executable, program, "hold", str(path)]
    with subprocess.Popen(line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout.readline() == "holding\n"
            began = time.monotonic()
            with pytest.raises(UserError, match=f"the run folder is in use by process {first.pid} on "):
                RunFolder.resume(path)
            with pytest.raises(UserError, match=f"in use by process {first.pid}"):
                RunFolder.create(path, scenario.make_run())
            assert time.monotonic() - began < 1.0
        finally:
            first.send_signal(signal.SIGKILL)
    scenario.drive(path)
    assert scenario.outcome(path) == scenario.outcome(finished)


def test_a_deleted_lock_file_lets_no_second_owner_into_a_run_folder(tmp_path):
    with lock_folder(tmp_path, "the run folder"):
        (tmp_path / LOCK_FILE).unlink()
        assert is_folder_locked(tmp_path)
        with pytest.raises(UserError, match="the run folder is in use by"):
            lock_folder(tmp_path, "the run folder")
    assert not is_folder_locked(tmp_path)
    lock_folder(tmp_path, "the run folder").release()


@pytest.mark.parametrize("number", [errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP])
def test_a_file_system_without_locks_of_folders_has_the_files_lock(tmp_path, monkeypatch, number):
    """As NFS does, where an exclusive lock needs a descriptor that may write."""
    flock = fcntl.flock

    def of_files_only(descriptor, operation):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", of_files_only)
    with lock_folder(tmp_path, "the run folder"):
        assert is_folder_locked(tmp_path)
        with pytest.raises(UserError, match="in use"):
            lock_folder(tmp_path, "the run folder")
    assert not is_folder_locked(tmp_path), "a reader asks for both locks, and has no answer to the second"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_any_locks_refuses_drivers_and_lets_readers_go_on(tmp_path, monkeypatch, number):
    """As Lustre without `-o flock` does."""

    def nowhere(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", nowhere)
    with pytest.raises(UserError, match=rf"{LOCK_FILE}: this file system locks nothing .*; choose another .*--out DIR"):
        lock_folder(tmp_path, "the run folder")
    assert not is_folder_locked(tmp_path) and look(tmp_path).status == "planned"


def test_a_lock_that_cannot_be_asked_for_because_the_disk_fails_is_an_error(tmp_path, monkeypatch):
    def failing(descriptor, operation):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", failing)
    with pytest.raises(UserError, match=rf"{LOCK_FILE}: cannot lock: Input/output error; .* check the disk"):
        lock_folder(tmp_path, "the run folder")
    with pytest.raises(OSError, match="Input/output error"):
        is_folder_locked(tmp_path)
