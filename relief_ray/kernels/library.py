"""Builds the C library at its first use and calls it: ``call(name, ...)`` with tensors, numbers and rules.

One library for each source, set of flags and instruction level lies in the cache, named by their sha256 and renamed
into place whole. The level is named in the flags and never "native": a library's name says what it computes.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from relief_ray.support.errors import UserError
from relief_ray.support.files import cache_root, write_atomic

SOURCE = Path(__file__).with_name("kernels.c")
# Contraction and reassociation would let a compiler choose bits; nothing is linked but memcpy and memset.
FLAGS = (
    "-std=gnu11",
    "-O3",
    "-fno-fast-math",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
)
# Rows of a tile of a matrix product, at most: what ``linear_back`` needs in its work space.
ROWS = 12


class Level(NamedTuple):
    """An instruction level: the compiler's flags, and what ``/proc/cpuinfo`` must name."""

    flags: tuple[str, ...]
    needs: frozenset[str]


_AVX2 = Level(("-mavx2", "-mfma"), frozenset({"avx2", "fma"}))
_AVX512 = Level(
    (*_AVX2.flags, "-mavx512f", "-mavx512dq", "-mavx512vl"), _AVX2.needs | {"avx512f", "avx512dq", "avx512vl"}
)
# The fastest first; all compute the same bits.
LEVELS = {"x86_64": (_AVX512, _AVX2), "aarch64": (Level((), frozenset({"asimd"})),)}
# The same sums in double precision, value by value: the reference of tests.
_DOUBLE = ("-DRELIEF_PLAIN", "-DRELIEF_DOUBLE")
_COMPILE_S = 120.0
# What `_answer` gives with every sum in the source's order.
_KNOWN = "ba7735fd"


class Rule(ctypes.Structure):
    """The numbers of one optimizer step, as ``kernels.c`` has them."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "first", "kept")),
        *(
            (name, ctypes.c_double)
            for name in ("rate", "keep1", "new1", "keep2", "new2", "root", "eps", "decay", "shrink")
        ),
    )


class Conv(ctypes.Structure):
    """The shape of a convolution, as ``kernels.c`` has it."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("batch", "samples", "ins", "outs", "pooled"))


class Kind(IntEnum):
    """How a step is computed: Adam, SGD with a velocity, SGD."""

    ADAM = 0
    VELOCITY = 1
    SGD = 2


class NoLibrary(UserError):
    """Why there is no library on this machine."""


@cache
def library(dtype: torch.dtype = torch.float32) -> ctypes.CDLL:
    """The library of this machine for float32, or that of float64.

    Raises:
        NoLibrary: another processor or system, no compiler, or one that fails; the reason is named.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in LEVELS:
        raise NoLibrary(f"{sys.platform} on {machine}: kernels are for Linux on x86_64 with AVX2 and aarch64")
    flags = (*FLAGS, *_level(machine).flags, *(_DOUBLE if dtype == torch.float64 else ()))
    # Words of $CC may change what is made; which compiler it is must not.
    digest = sha256(SOURCE.read_bytes() + " ".join((*_named()[1:], *flags)).encode()).hexdigest()[:16]
    loaded = _load(f"kernels-{machine}-{digest}.so", flags)
    for name in ("loss", "squares", *(["coded"] if dtype == torch.float32 else [])):
        getattr(loaded, f"relief_{name}").restype = ctypes.c_double
    if dtype == torch.float32 and (answer := _answer(loaded)) != _KNOWN:
        raise NoLibrary(
            f"{loaded._name} computes other numbers than every other machine's (check {answer}, expected {_KNOWN}): "
            "remove it and name another compiler ($CC)"
        )
    return loaded


def _level(machine: str) -> Level:
    """The fastest level of this processor.

    Raises:
        NoLibrary: it has none; what the slowest needs is named.
    """
    known, levels = _cpu_flags(), LEVELS[machine]
    for level in levels:
        if level.needs <= known:
            return level
    raise NoLibrary(f"this processor lacks {', '.join(sorted(levels[-1].needs - known))}")


def _answer(of: ctypes.CDLL) -> str:
    """Digest of a small linear layer's output, gradient and step of Adam, a loss's gradient, and a change as int8."""
    batch, outs, ins = 5, 3, 21
    numbers = torch.arange(batch * ins, dtype=torch.float32).remainder(37) / 7 - 2
    h, bias, g = numbers, numbers[:outs], numbers[: batch * outs]
    w, m, v = (numbers[: outs * ins].clone() for _ in range(3))
    y, dh, work, dy = (
        numbers.new_zeros(numel) for numel in (batch * outs, batch * 32, 32 * (batch + ROWS), batch * outs)
    )
    labels, rule = torch.arange(batch) % outs, Rule(0, 0, 1, 0.01, 0.9, 0.1, 0.99, 0.01, 1.5, 1e-8, 0.0, 0.999)
    v.square_()
    table, scales, told = torch.tensor([20, 85]), torch.empty(2), torch.empty(2, dtype=torch.int64)
    rounded = torch.empty_like(numbers)
    for name, arguments in (
        ("linear", (batch, outs, ins, h, ins, w, bias, y)),
        ("linear_back", (batch, outs, ins, g, h, ins, w, dh, 32, None, rule, m, v, work)),
        ("loss", (batch, outs, y, labels, dy)),
        ("coded", (numbers, numbers.flip(0), rounded, len(table), table, scales, told)),
    ):
        _function(of, name, len(arguments))(*map(_word, arguments))
    return sha256(b"".join(x.numpy().tobytes() for x in (y, dh, w, m, v, dy, rounded))).hexdigest()[:8]


@cache
def why_missing() -> str:
    """Why this machine has no library; empty: it has one."""
    try:
        library()
    except (NoLibrary, OSError) as error:
        return str(error)
    return ""


def require_library(device: str = "cpu") -> None:
    """Load the library, for a run whose engine is ``fused``.

    Raises:
        UserError: this machine, which is named, has none, or computes on another device.
    """
    if why := why_missing() if device == "cpu" else f"its kernels are for a CPU, found {device}":
        raise UserError(
            f"engine 'fused' on {platform.node()}: {why}; a run has one engine everywhere, also after a resume: "
            "use a machine that has it, or begin a new run with training.engine=gemm"
        )


def _cpu_flags() -> set[str]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return {word for line in lines if line.startswith(("flags", "Features")) for word in line.split(":")[1].split()}


def _load(name: str, flags: Sequence[str]) -> ctypes.CDLL:
    """The library from the cache, compiled where it is not there yet; any number of processes may do so at once."""
    kept = cache_root() / "kernels" / name
    with suppress(OSError):  # none yet, damaged, or of another C library: compiled anew
        if _is_ours(kept):
            return ctypes.CDLL(str(kept))
    with tempfile.TemporaryDirectory(prefix="relief-kernels-") as place:
        made, compiler = Path(place) / name, _compiler()
        try:
            words = [*compiler, *flags, "-o", str(made), str(SOURCE)]
            done = subprocess.run(words, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
            why = "" if not done.returncode else done.stderr.strip()[-200:] or f"it ended with {done.returncode}"
        except OSError as error:
            why = str(error.strerror)
        except subprocess.TimeoutExpired:
            why = f"not done after {_COMPILE_S:.0f} s"
        if why:
            raise NoLibrary(f"`{shlex.join(compiler)}` could not compile them: {why}")
        with suppress(UserError, OSError):  # no room, read-only, no programs allowed: this process compiled for itself
            write_atomic(kept, made.read_bytes())
            return ctypes.CDLL(str(kept))
        return ctypes.CDLL(str(made))


def _is_ours(path: Path) -> bool:
    """Whether nobody but this user or root can have written a file."""
    status = path.stat()
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & 0o022


def _named() -> list[str]:
    try:
        return shlex.split(os.environ.get("CC", ""))
    except ValueError as error:
        raise NoLibrary(f"$CC is {os.environ['CC']!r}: {error}") from error


def _compiler() -> list[str]:
    """``$CC``, or the first of cc, gcc, clang, or the compiler that Zig's wheel brings.

    Raises:
        NoLibrary: there is none.
    """
    if named := _named():
        return named
    found = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if found:
        return [found]
    if find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise NoLibrary("no C compiler (looked for $CC, cc, gcc, clang, the package ziglang); install one of them")


@cache
def _function(of: ctypes.CDLL, name: str, num_arguments: int) -> Callable[..., float]:
    function: Any = getattr(of, f"relief_{name}")
    function.argtypes = [ctypes.c_int64] * num_arguments  # addresses too, as on every machine that it is built for
    return cast(Callable[..., float], function)


def call(name: str, *arguments: Tensor | ctypes.Structure | int | None) -> float:
    """Call ``relief_<name>``: tensors and rules by their address, None as null.

    The first tensor of real numbers says which library computes.
    """
    words = [_word(a) for a in arguments]
    dtype = next(a.dtype for a in arguments if isinstance(a, Tensor) and a.is_floating_point())
    return _function(library(dtype), name, len(words))(*words)


def _word(argument: Tensor | ctypes.Structure | int | None) -> int:
    if isinstance(argument, Tensor):
        return argument.data_ptr()
    return argument if isinstance(argument, int) else 0 if argument is None else ctypes.addressof(argument)


def steps(rule: Rule, moved: Sequence[tuple[Tensor | None, Tensor | None, Tensor, Tensor]]) -> None:
    """A step of each tensor: its moments (where the rule has them), gradient and values, which are changed."""
    if not moved:
        return
    rows = [_word(x) for mean, square, grad, p in moved for x in (mean, square, p.numel(), grad, p)]
    table = (ctypes.c_int64 * len(rows))(*rows)
    of = library(moved[0][-1].dtype)
    _function(of, "steps", 3)(ctypes.addressof(rule), len(moved), ctypes.addressof(table))


def coded(values: Tensor, start: Tensor, out: Tensor, lengths: Sequence[int]) -> tuple[float, int, int]:
    """Put into ``out`` what int8 codes of ``values - start`` say, of tensors of these ``lengths`` one after the other.

    Returns its ``squares``, and how many values were not 0 before and after rounding. Both numbers are -1, and ``out``
    is the difference itself, where int8 cannot hold a value. float32 (n,), each in one piece; the bits are those of
    ``core.codec``, and ``out`` may be ``values``.
    """
    assert sum(lengths) == values.numel() == start.numel() == out.numel(), "it reads and writes as many values"
    table, scales = torch.tensor([*lengths, 0, 0]), torch.empty(len(lengths))
    told = table[len(lengths) :]
    square = call("coded", values, start, out, len(lengths), table, scales, told)
    before, after = told.tolist()
    return square, before, after


def squares(values: Tensor, start: Tensor | None = None, out: Tensor | None = None) -> float:
    """``|values|^2`` (n,) in float64, finite exactly where all values are; the same bits on every processor.

    ``start``: what is squared is ``values - start``, which goes to ``out``, in one pass; all three are of one type and
    each in one piece, and ``out`` may be ``values``.
    """
    if start is None:
        values = values.detach().to(torch.float32).contiguous()
    return call("squares", values.numel(), values, start, out)
