"""The token of a cluster: a file that only its owner may read; whoever has it may run code on every node."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from relief_ray.support.errors import UserError
from relief_ray.support.files import disk_errors

MODE, PATH, WORD = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_TOKEN"
_PRIVATE = 0o600
# Of a token; ours has 64 bytes.
_LEAST_BYTES, _MOST_BYTES = 16, 4096


def token_path(chosen: Path | None) -> Path:
    """The token's file: ``chosen``, else ``RAY_AUTH_TOKEN_PATH``, else where Ray itself looks for one."""
    return (chosen or Path(os.environ.get(PATH) or "~/.ray/auth_token")).expanduser().absolute()


def make_token(path: Path) -> bool:
    """Write a new token where there is none, readable by its owner alone; return whether it was written.

    Raises:
        UserError: the one that is there is empty, or others may read it; or the folder cannot be written.
    """
    if path.exists():
        check_token(path)
        return False
    with disk_errors(path, "write the token"):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE), "w") as file:
            file.write(secrets.token_hex(32))
    return True


def check_token(path: Path) -> None:
    """Check that a token is there and that nobody else can read it.

    Raises:
        UserError: it is absent, empty, or others may read it; the message has the command that mends it.
    """
    if not path.is_file():
        raise UserError(
            f"{path}: no such file, expected the cluster's token; `relief-ray cluster head` wrote it on the head's "
            f"machine; copy it and keep it private:\n  scp HEAD:.ray/auth_token {path} && chmod 600 {path}"
        )
    if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
        raise UserError(
            f"{path}: mode {mode:04o}, others may use the cluster's token; expected 0600:\n  chmod 600 {path}"
        )
    if not path.read_text().strip():
        raise UserError(f"{path}: is empty, expected the cluster's token; copy it from the head's machine")


def holds_token(path: Path) -> bool:
    """True for a file that looks like a token: ``token`` in its name, its owner's alone, one long word in it."""
    if "token" not in path.name.lower():
        return False
    facts = path.stat()
    if stat.S_IMODE(facts.st_mode) & 0o077 or not _LEAST_BYTES <= facts.st_size <= _MOST_BYTES:
        return False
    words = path.read_bytes().split()
    return len(words) == 1 and len(words[0]) >= _LEAST_BYTES


def use_token(chosen: Path | None) -> None:
    """Let Ray in this process show the token, where there is one; variables that the user has set are left alone.

    To be called before Ray is imported, which reads them once.

    Raises:
        UserError: the file that was named is absent, or others may read it.
    """
    if chosen is None and os.environ.get(WORD):
        os.environ.setdefault(MODE, "token")
        return
    path = token_path(chosen)
    if chosen is None and (os.environ.get(MODE) or not path.is_file()):
        return
    check_token(path)
    os.environ.update({MODE: "token", PATH: str(path)})
    os.environ.pop(WORD, None)


def refuse_open(insecure: bool) -> None:
    """Check that nobody starts a node without a token unawares: Ray's ports listen on all interfaces.

    Raises:
        UserError: ``RAY_AUTH_MODE`` switches the token off, and the user did not say ``--insecure``.
    """
    mode = os.environ.get(MODE, "token")
    if mode != "token" and not insecure:
        raise UserError(
            f"{MODE}={mode}: a node without a token; whoever reaches its ports, which Ray opens on all interfaces, "
            f"could run any program here as you; unset {MODE}, or say --insecure where nobody else is on the network"
        )
