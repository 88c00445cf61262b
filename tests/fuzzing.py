"""A seeded fuzzer of configurations: settings and YAML files that a user, or a broken script, might write.

``python -m tests.fuzzing 20000 5000 1 2000`` tries more than the tests do, and prints whatever is no answer. Numbers:
of settings, of files, the seed, and of settings with which runs are made ready to start.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from relief_ray.config.experiment import all_keys
from relief_ray.config.keys import Key
from relief_ray.devices.fleet import DeviceType
from relief_ray.experiment.setup import prepare
from relief_ray.strategies import PRESETS
from relief_ray.studies.plan import load_spec
from relief_ray.support.errors import UserCodeFailed, UserError, value_text
from tests.plans import cells_of

SCALARS = [
    "", "~", "null", "true", "no", "0", "-1", "1", "2", "0.5", "1e3", "1e999", ".inf", "-.inf", ".nan", "0x1F", "0b11",
    "1:30", "2026-13-45", "2026-02-30 10:00:00", "2026-01-01", "9" * 4401, "0x" + "f" * 5000, "1_000", "99999999999999",
    "!!int x", "!!float x", "!!bool x", "!!timestamp x", "!!binary x", "!!python/object:os.system x", "!!set {a}",
    "!!omap [a]", "!!pairs [a: 1]", "!unknown x", "&a x", "*a", "? x", "'", '"', "'it''s'", '"\\x00"', '"\\ud800"',
    "\x07", "\udcff", "\u202e", "ß→日本", "\N{PILE OF POO}" * 30, "-", "- a", ": a", "a: b", "# a", "%TAG ! x", "---",
    "--- a\n--- b", "...", "|", ">-", "@a", "`a", "[", "]", "{", "}", "[" * 3000, "{" * 3000, "[" * 40 + "]" * 40,
    "- " * 3000 + "a", "{a: " * 60 + "1" + "}" * 60, "[1, 2", "[a]", "[[]]", "{}", "{a: 1}", "{1: 2}", "{[a]: 1}",
    "{null: 1}", "{a: 1, a: 2}", "&a [*a]", "{<<: *a}", "{<<: 3}", "my.module:Mine", "os:path", "a:b:c", ":", "a:",
    "relif", "relief", "fedavg", "cnn", "moment_lora", "dsa", "../../etc", "/dev/zero", "/dev/full", "/", "x" * 5000,
    "auto", "cpu", "cuda", "[0]", "[-1]", "[1, 1]", "['']", "0-4", "1/0", "${HOME}", "$(ls)", "%s%n", "\\", "a=b", "=",
]  # fmt: skip
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)
TEXTS = [
    b"", b"\n", b"\xef\xbb\xbfrounds: 2\n", b"rounds: 2\r\nseed: 3\r\n", b"\xff\xfer\x00o\x00", b"rounds: \x00\n",
    b"\x00" * 64, b"rounds: 2\nrounds: 3\n", b"data: {fold: 0, fold: 1}\n", b"name: \xe9t\xe9\n", BOMB.encode(),
    b"name: &a [*a]\n", b"[" * 5000, b"{" * 5000, b"- a\n- b\n", b"just text\n", b"3\n", b"\t\n", b"rounds:\t2\n",
    b"rounds: 2\n---\nrounds: 3\n", b"? [a, b]\n: 1\n", b"1: 2\n", b"null: 2\n", b"'': 2\n", b"a: b: c\n", b"<<: 3\n",
    b"&a rounds: *a\n", b"%YAML 9.9\n---\nrounds: 2\n", b"rounds: !!python/name:os.system\n", b'{"rounds": 2',
    b'{"rounds": 2}', b"rounds: 2 # ok\n", "\u2028rounds: 2\n".encode(), b"rounds: 2\n" * 3000, b"x" * 400_000,
    b"".join(b" " * i + b"a:\n" for i in range(300)), b"name: |\n" + b"  x\n" * 60_000, b"#" * 200_000,
]  # fmt: skip


# Sections whose values matter when a run is made ready. Keys that name other data, files or hosts are left out.
READ_LATE = ("strategy", "data", "fleet", "backbone", "training", "costs", "evaluation", "participation", "seed")
ELSEWHERE = ("data.name", "backbone")
# Small enough that a run is ready in a fraction of a second.
SMALL = ["data.stride_s=30", *(f"backbone.{key}=2" for key in ("conv1", "conv2", "steps", "fusion"))]


class Hang(BaseException):
    """Raised where an answer takes too long; nothing that handles errors swallows it."""


@dataclass(kw_only=True, slots=True)
class Tally:
    """Outcomes by kind, what is no answer, and the slowest answer in seconds."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest_s: float = 0.0


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raise ``Hang`` in the block once it has computed so long, or lasted ten times so long: others use the machine."""

    def stop(number: int, frame: object) -> None:
        raise Hang(f"no answer within {seconds:g} s")

    timers = {signal.ITIMER_PROF: (signal.SIGPROF, seconds), signal.ITIMER_REAL: (signal.SIGALRM, 10 * seconds)}
    before = {number: signal.signal(number, stop) for number, _ in timers.values()}
    for timer, (_, limit_s) in timers.items():
        signal.setitimer(timer, limit_s)
    try:
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def check(target: str, settings: list[str]) -> None:
    """Check what `relief-ray run TARGET --set ..` was given, as the command does before it opens any data."""
    cells_of(load_spec(target), settings)


def check_ready(settings: list[str]) -> None:
    """Check settings as a run of `quick` does before its first round: with its data, fleet, backbone and clocks."""
    check("quick", settings)
    prepare(cells_of(load_spec("quick"), [*SMALL, *settings])[0].config)


# Words of what is expected or wrong, and of what to do.
EXPECTS = re.compile(r"expected|unknown|known:|did you mean|cannot|is not|needs|has no|no such|stands|holds|only|but ")
FIXES = re.compile(
    r"[;:,] (change|choose|flatten|give|leave|lower|mend|name|raise|remove|say|set|shorten|start|take|type|use|write)\b"
)


def complaint(message: str, places: list[str]) -> str:
    """What a refusal lacks: the place, what is expected or else a fix, or brevity; empty where it has all."""
    flat = " ".join(message.split())
    lacks = []
    if not any(place and place in flat for place in places):
        lacks.append("place")
    if not EXPECTS.search(flat) and not FIXES.search(flat):
        lacks.append("expectation and fix")
    if len(flat) > 6000:
        lacks.append("brevity")
    return ", ".join(lacks)


def attempt(tally: Tally, what: str, call: Callable[[], None], places: list[str], limit_s: float) -> None:
    """Try one input; anything but success or a whole refusal is noted."""
    began = time.perf_counter()
    try:
        with bounded(limit_s):
            call()
        tally.counts["taken"] += 1
    except (UserError, UserCodeFailed) as error:
        tally.counts["refused"] += 1
        if lacks := complaint(str(error), places):
            tally.counts["poor refusals"] += 1
            tally.wrong.append(f"{what[:200]!r}: lacks {lacks}: {str(error)[:400]}")
    except Hang as error:
        tally.counts["hangs"] += 1
        tally.wrong.append(f"{what[:200]!r}: {error}")
    except Exception:
        tally.counts["tracebacks"] += 1
        tally.wrong.append(f"{what[:200]!r}:\n" + traceback.format_exc(limit=-4))
    tally.slowest_s = max(tally.slowest_s, time.perf_counter() - began)


def value(rng: random.Random, depth: int = 0) -> str:
    """A value as YAML: mostly a scalar, sometimes a list or a mapping of some."""
    draw = rng.random()
    if depth < 3 and draw < 0.1:
        return "[" + ", ".join(value(rng, depth + 1) for _ in range(rng.randrange(4))) + "]"
    if depth < 3 and draw < 0.2:
        return "{" + ", ".join(f"{key(rng)}: {value(rng, depth + 1)}" for _ in range(rng.randrange(4))) + "}"
    if draw < 0.3:
        return str(rng.choice([rng.uniform(-10, 1e6), rng.randrange(-5, 10**6)]))
    if draw < 0.45:
        return value_text(rng.choice(all_keys()).default)
    return rng.choice(SCALARS)


def fitting(rng: random.Random, known: Key) -> str:
    """A value that the type of a key allows, or nearly."""
    if options := known.options():
        return str(rng.choice(options))
    match known.schema.get("anyOf", [{}])[0].get("type"):
        case "integer":
            return str(rng.choice([0, 1, 2, 3, 7, 100, 10**4, 10**6, 10**9, 10**18]))
        case "number":
            return str(rng.choice([0, 1e-9, 0.1, 0.5, 0.999, 1, 2.5, 1e6, 1e300]))
        case "boolean":
            return rng.choice(["true", "false"])
    return value(rng) if rng.random() < 0.7 else f"[{value(rng)}]"


def setting(rng: random.Random) -> str:
    """A setting: half of the time of a key of the table, with a value that may fit."""
    if rng.random() < 0.5:
        known = rng.choice([k for k in all_keys() if k.of in ("", "relief", "cnn")])
        return f"{known.key}={fitting(rng, known)}"
    return rng.choice(["{}={}"] * 30 + ["{}", "={1}", "{}=={}", "{}:{}"]).format(key(rng), value(rng))


def key(rng: random.Random) -> str:
    """A key: one of the table, one with a slip, or anything."""
    path = rng.choice(all_keys()).key
    draw = rng.random()
    if draw < 0.6:
        return path
    if draw < 0.7:
        return path.rpartition(".")[rng.choice([0, 2])]
    if draw < 0.8:
        place = rng.randrange(len(path) + 1)
        return path[:place] + rng.choice(["", "x", ".", "..", " ", "É", "\udc80", "-"]) + path[place + 1 :]
    if draw < 0.9:
        return f"{path}.{rng.choice(['a', '0', 'name', 'C', ''])}"
    return rng.choice([".", "..", "a" * 3000, "a." * 500 + "a", "__class__", "model_config", "0", "name.x", " ",
                       "replicate", "replicates", "lr", "strategy.name.x", "fleet.types..C"])  # fmt: skip


def read_late(rng: random.Random) -> str:
    """A setting that only a run made ready can judge: of a key in ``READ_LATE``, with a value that may fit."""
    known = rng.choice(
        [k for k in all_keys() if k.of in ("", "cnn") and k.key.split(".")[0] in READ_LATE and k.key not in ELSEWHERE]
    )
    return f"{known.key}={likely(rng, known)}"


def likely(rng: random.Random, known: Key) -> str:
    """A value for a key that its class takes more often than ``fitting``'s."""
    sensors = [rng.choice(["acc", "gyro", "mag", "x"]) for _ in range(rng.randrange(4))]
    figure = rng.choice([*DeviceType.model_fields, "flops"])
    number = rng.choice(["0", "1e-320", "1e-9", "0.5", "1", "1e12", "1e300", "-1", "null", "x", str(10**20)])
    made = {
        "backbone": rng.choice(["0", "1", "2", "3", "7", "100", "1e9", str(10**9), str(10**18)]),
        "data.subjects": str([rng.randrange(10) for _ in range(rng.randrange(5))]),
        "data.units": rng.choice(["[]", "[T]", "[T, RA]", "[LL]", "[x]"]),
        "fleet.types": f"{{{rng.choice('ABCD')}: {{{figure}: {number}, sensors: [{', '.join(sensors)}]}}}}",
        "costs.planning_time": rng.choice(["split_naive", "split_reuse", "measured", "x"]),
        "costs.utilisation": number,
        "strategy": rng.choice(list(PRESETS)),
    }
    return made.get(known.key) or made.get(known.key.split(".")[0]) or fitting(rng, known)


def settings_of(seed: int, number: int) -> Iterator[list[str]]:
    """So many lists of one to three settings."""
    yield from _lists_of(setting, seed, number)


def _lists_of(draw: Callable[[random.Random], str], seed: int, number: int) -> Iterator[list[str]]:
    rng = random.Random(seed)
    for _ in range(number):
        yield [draw(rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))]


def files_of(seed: int, number: int) -> Iterator[bytes]:
    """So many contents of configuration files: the known ones, then random ones, some with bytes that were changed."""
    rng = random.Random(seed)
    yield from TEXTS[:number]
    for _ in range(number - len(TEXTS)):
        lines = []
        for _ in range(rng.randrange(1, 6)):
            path, inside = key(rng).split("."), value(rng)
            lines.append("".join(f"{'  ' * i}{part}:\n" for i, part in enumerate(path[:60]))[:-1] + f" {inside}")
        data = bytearray("\n".join(lines).encode("utf-8", "surrogateescape" if rng.random() < 0.5 else "replace"))
        for _ in range(rng.choice([0, 0, 0, 1, 5])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        yield bytes(data)


def fuzz_settings(seed: int, number: int, limit_s: float = 2.0) -> Tally:
    """Try so many lists of settings on the preset ``quick``."""
    return _fuzz(settings_of(seed, number), partial(check, "quick"), limit_s)


def fuzz_ready(seed: int, number: int, limit_s: float = 10.0) -> Tally:
    """Try so many lists of settings on runs of ``quick`` that are made ready to start."""
    return _fuzz(_lists_of(read_late, seed, number), check_ready, limit_s)


def _fuzz(lists: Iterable[list[str]], call: Callable[[list[str]], None], limit_s: float) -> Tally:
    tally = Tally()
    for settings in lists:
        places = [part for s in settings for part in (s.partition("=")[0].partition(".")[0][:60], "--set")]
        attempt(tally, " ".join(settings), partial(call, settings), places, limit_s)
    return tally


def fuzz_files(seed: int, number: int, folder: Path, limit_s: float = 2.0) -> Tally:
    """Try so many configuration files."""
    tally = Tally()
    for i, content in enumerate(files_of(seed, number)):
        path = folder / f"{i}.yaml"
        path.write_bytes(content)
        attempt(tally, repr(content), partial(check, str(path), []), [str(path), f"{i} (", "costs.profile"], limit_s)
    return tally


def main() -> int:
    """Fuzz with the numbers and the seed that the command line has (above); 1: one input has no answer."""
    given = [int(word) for word in sys.argv[1:5]]
    num_settings, num_files, seed, num_ready = (*given, *(2000, 500, 0, 200)[len(given) :])
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RELIEF_CACHE"] = str(Path(folder) / "cache")
        tallies = {
            "settings": fuzz_settings(seed, num_settings),
            "files": fuzz_files(seed, num_files, Path(folder)),
            "settings of runs made ready": fuzz_ready(seed, num_ready),
        }
    for name, tally in tallies.items():
        print(name, dict(tally.counts), f"slowest {tally.slowest_s:.2f} s")
        print("\n".join(tally.wrong[:60]))
    return int(any(tally.wrong for tally in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
