"""What is said of a process that died: out of memory only with evidence."""

import json

import pytest

from actors.runtime import errors as deaths
from actors.runtime.errors import count_kills, describe_death

# Ray's words on any process that was killed: they name the kernel's killer as one of several guesses.
KILLED = (
    "Failure # 1 (occurred at 2026-11-23_15-19-11)\nThe actor died unexpectedly before finishing this task.\n"
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was "
    "killed by the OOM killer due to high memory usage, (2) ray stop --force was called, or (3) the worker crashed "
    "unexpectedly due to SIGSEGV or another unexpected error. If the process was killed by the kernel OOM killer ..\n"
)
BY_RAY = "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "driver.lock").write_text(json.dumps({"pid": 4711, "host": "h", "since": "now"}))
    return tmp_path


@pytest.mark.parametrize(
    ("trouble", "before", "now", "said", "unsaid"),
    [
        (KILLED, 5, 5, ["4711 died twice (Ray: SYSTEM_ERROR)", "no sign of a lack of memory", "dmesg"], "fewer cells"),
        (KILLED, None, None, ["not known whether memory ran out"], "fewer cells"),
        (KILLED, 5, 7, ["out-of-memory killer ended 2 processes on this node since", "--jobs N"], "SYSTEM_ERROR"),
        (BY_RAY, 5, 5, ["ended by Ray because this node ran low on memory", "--jobs N"], "died twice"),
        ("", 5, 5, ["Ray gave no reason"], "fewer cells"),
    ],
)
def test_memory_is_named_only_where_something_shows_it(folder, monkeypatch, trouble, before, now, said, unsaid):
    monkeypatch.setattr(deaths, "count_kills", lambda: now)
    text = describe_death(folder, trouble, before, died="died twice", fewer="run fewer cells at a time (--jobs N)")
    assert all(words in text for words in said) and unsaid not in text, text


def test_the_kernels_count_is_read(tmp_path):
    counters = tmp_path / "vmstat"
    counters.write_text("pgfault 12\noom_kill 3\nnuma_hit 0\n")
    assert count_kills(counters) == 3
    counters.write_text("pgfault 12\n")
    assert count_kills(counters) is None and count_kills(tmp_path / "absent") is None
