"""What users' code reads by itself while it is loaded or called: files, variables of the environment, programs.

No record and no key of the cache has what is read so. Python tells its audit hooks of every file that it opens and of
every program that it starts; what a library opens in C (SQLite, HDF5) is not seen. A hook cannot be taken out again:
this one does nothing unless somebody waits for it. Variables are seen where users' code asks for them itself.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType

from relief_ray.plugins.blame import INSTALLED, users_file
from relief_ray.support.errors import listed

_PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty")
# Flags of a file that begins empty, or that nothing is read of; one that is opened to be changed is read as well.
_WRITES = os.O_WRONLY | os.O_TRUNC
_CODE = (".py", ".pyc", ".so", ".pyd")
# What lies there belongs to the system, to Python or to a library.
_NOBODYS = tuple(Path(place) for place in ("/proc", "/sys", "/dev", "/etc", "/usr", sys.prefix, sys.base_prefix))
_LIBRARYS = INSTALLED | {".cache", ".config"}
# Variables that say where things are, or how fast they are computed.
_PLACES = frozenset({"HOME", "USER", "LOGNAME", "PWD", "PATH", "TMPDIR"})


@dataclass(kw_only=True, slots=True, eq=False)
class Reads:
    """What users' code has read, each with the file of the code that read it.

    Attributes:
        files: files that it opened, links followed.
        written: those that it opened for writing: what it reads there is its own.
        variables: how often it asked for variables of the environment.
        programs: names of the programs that it started.
        before: threads that ran already when this began; others are taken as begun by users' code.
    """

    files: set[tuple[Path, str]] = field(default_factory=set)
    written: set[Path] = field(default_factory=set)
    variables: Counter[tuple[str, str]] = field(default_factory=Counter)
    programs: set[tuple[str, str]] = field(default_factory=set)
    before: frozenset[int] | None = None

    def by(self, sources: Collection[str]) -> Reads:
        """Only what code in these files has read."""
        variables = Counter({key: times for key, times in self.variables.items() if key[1] in sources})
        files = {one for one in self.files if one[1] in sources}
        programs = {one for one in self.programs if one[1] in sources}
        return Reads(files=files, written=self.written, variables=variables, programs=programs)

    def opened(self, near: Path | None = None) -> list[Path]:
        """Data files that were opened: none of Python, of the system or of a library, and none that was written here.

        ``near``: a folder of data. Whatever lies below it counts, except installed packages, and files of code count.
        """
        files = sorted({file for file, _ in self.files if file not in self.written})
        files = [file for file in files if near is not None or file.suffix not in _CODE]
        return [file for file in files if file.is_file() and _is_data(file, near)]

    def asked(self) -> list[str]:
        """Names of variables; a copy of the whole environment asks for none of them."""
        times = Counter[str]()
        for (name, _), number in self.variables.items():
            times[name] += number
        copies = min((times[name] for name in os.environ), default=0)
        names = (name for name, number in times.items() if number > (copies if name in os.environ else 0))
        return sorted(name for name in names if name not in _PLACES and not name.startswith("RELIEF_"))

    def started(self) -> list[str]:
        """Names of programs."""
        return sorted({program for program, _ in self.programs})

    def told(self, known: Collection[str] = ()) -> str:
        """All of it in words, without ``known`` variables; empty where there is nothing."""
        variables = [name for name in self.asked() if name not in known]
        words = [*map(str, self.opened()), *(f"{name} of the environment" for name in variables)]
        parts = [f"reads {listed(words)}"] if words else []
        return " and ".join([*parts, *([f"starts {listed(self.started())}"] if self.programs else [])])


# Of all modules of users that this process has imported by their import path.
AT_IMPORT = Reads()
_WAITING: list[Reads] = []


def _is_data(file: Path, near: Path | None) -> bool:
    if near is not None and near in file.parents:
        return not INSTALLED & set(file.parts)
    return not (_LIBRARYS & set(file.parts) or any(place in file.parents for place in _NOBODYS))


def _note(event: str, values: tuple[object, ...]) -> None:
    if not _WAITING or (event != "open" and event not in _PROGRAMS):
        return
    target = values[0] if values else "a copy of itself"  # of a fork
    if not isinstance(target, (str, bytes, os.PathLike)):
        return
    name, user, thread = os.fsdecode(target), users_file(_opener(sys._getframe(1))), threading.get_ident()
    for reads in _WAITING:
        # A thread of a pool has no frame of the code that gave it the work.
        by = "" if user is None and reads.before is not None and thread not in reads.before else user
        if by is None:
            continue
        if event != "open":
            reads.programs.add((name, by))
        elif isinstance(flags := values[2], int) and (
            flags & _WRITES or (flags & os.O_CREAT and not os.path.exists(target))
        ):
            reads.written.add(Path(os.path.realpath(name)))
        else:
            file = Path(os.path.realpath(name))
            is_compiled = file.parent.name == "__pycache__" and file.suffix == ".pyc"
            reads.files.add((file.parents[1] / f"{file.stem.split('.')[0]}.py" if is_compiled else file, by))


def _opener(frame: FrameType) -> FrameType | None:
    """Return the frame of the code that opens a file; None where Python does so for an ``import`` or a traceback.

    Modules that an ``import`` names are found by ``plugins.load.sources``. A module that is imported by a computed
    name is not, so that its file counts as opened by the code that imports it.
    """
    each, inner = frame, frame
    while each.f_code.co_filename.startswith("<frozen importlib") and each.f_back is not None:
        each, inner = each.f_back, each
    is_code = (
        inner.f_code.co_name in ("_find_and_load", "_handle_fromlist") or frame.f_globals.get("__name__") == "tokenize"
    )
    return None if is_code else each


@cache
def _install() -> None:
    sys.addaudithook(_note)
    kind, method = type(os.environ), "__getitem__"
    plain = kind.__getitem__

    def noted(self: os._Environ[str], name: str) -> str:
        caller = sys._getframe(1)
        is_default = caller.f_code.co_name == "setdefault"
        if _WAITING and not is_default and (by := users_file(caller, ("os", "collections.abc"))) is not None:
            for reads in _WAITING:
                reads.variables[name, by] += 1
        return plain(self, name)

    setattr(kind, method, noted)


@contextmanager
def noting(into: Reads | None = None) -> Iterator[Reads]:
    """What users' code reads in the block, from whichever thread; complete after it.

    ``into``: it is added to this (``AT_IMPORT``), without what threads of nobody's read.
    """
    _install()
    reads = into or Reads(before=frozenset(thread.ident or 0 for thread in threading.enumerate()))
    _WAITING.append(reads)
    try:
        yield reads
    finally:
        _WAITING.remove(reads)
