"""An advisory lock of a file or of a run folder that ends with its process and names its owner."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import time
from pathlib import Path

from relief_ray.support.errors import UserError, option
from relief_ray.support.files import disk_errors, read_whole
from relief_ray.support.text import now

_POLL_S = 0.05
# `is_locked` holds a lock for microseconds; whoever wants it meanwhile tries again.
_LOOK_S = 2 * _POLL_S
# Names the owner of a locked run folder. The folder itself is locked too: people delete files that look left over.
LOCK_FILE = "driver.lock"
# What file systems answer that have no such lock: those of networks may lock files only and no folders, or nothing.
_NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


class FileLock:
    """Holds ``path`` locked until ``release`` or the end of the process, however it ends."""

    def __init__(self, path: Path, purpose: str, *, wait_s: float = _LOOK_S, folder: Path | None = None) -> None:
        """Take the lock, waiting at most ``wait_s`` seconds.

        Args:
            path: file to lock; it names the owner.
            purpose: what it protects, for the error.
            wait_s: longest wait for another owner, seconds.
            folder: folder to lock as well: a deleted ``path`` lets no second owner in then.

        Raises:
            UserError: another process holds it (it is named), the file cannot be written or is a link, or its file
                system locks nothing.
        """
        self.path = path
        self._folder_fd: int | None = None
        with disk_errors(path, "lock"):
            self._fd = _open(path)
        try:
            until = time.monotonic() + wait_s
            with disk_errors(path, "lock"):
                self._take(self._fd, purpose, until)
                if folder is not None:
                    self._folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                    self._take(self._folder_fd, purpose, until)
                self._sign()
        except BaseException:
            self.release()
            raise

    def _take(self, descriptor: int, purpose: str, until: float) -> None:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise UserError(
                        f"{self.path}: {purpose} is in use by {owner(self.path)}; expected one writer at a time; "
                        "wait for it to end, stop it, or choose another folder"
                    ) from None
                time.sleep(_POLL_S)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                if descriptor != self._folder_fd:
                    raise UserError(
                        f"{self.path}: this file system locks nothing ({error.strerror}); expected one that keeps a "
                        f"second writer out; choose another folder ({option('out', 'DIR')}), or have it mounted with "
                        "locks (Lustre: -o flock)"
                    ) from error
                return

    def _sign(self) -> None:
        if os.fstat(self._fd).st_nlink > 1:  # in a backup of hard links the other name keeps its content
            return
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": now()}).encode(), 0)

    def release(self) -> None:
        """Release the lock; the file stays, since removing it would let two owners in."""
        os.close(self._fd)
        if self._folder_fd is not None:
            os.close(self._folder_fd)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _open(path: Path) -> int:
    """Open or create a lock file; do not follow links, which may lead to somebody else's file.

    Raises:
        UserError: it is a link, or no regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise UserError(f"{path}: is a link, expected the lock file itself; remove the link") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path}: is no regular file, expected the lock file; remove it")
    return descriptor


def lock_folder(folder: Path, purpose: str, *, wait_s: float = _LOOK_S) -> FileLock:
    """Lock a run folder and its file ``driver.lock``.

    Raises:
        UserError: as ``FileLock``.
    """
    return FileLock(folder / LOCK_FILE, purpose, wait_s=wait_s, folder=folder)


def is_folder_locked(folder: Path) -> bool:
    """True while a process works in a run folder, also after somebody deleted its ``driver.lock``."""
    return is_locked(folder / LOCK_FILE) or is_locked(folder)


def is_locked(path: Path) -> bool:
    """True while a process holds the lock of a file or folder; takes nothing away from it.

    False where the file system has no such lock: nobody can hold it there.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    finally:
        os.close(descriptor)
    return False


def owner(path: Path) -> str:
    """Describe the owner that the lock file names: process, host and time."""
    try:
        signed = json.loads(read_whole(path))
        return f"process {signed['pid']} on {signed['host']} since {signed['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "an unknown process"
