"""Where a host hangs: told again and again while a call runs, and forgotten with its end."""

import time
from types import SimpleNamespace

from actors.runtime import errors as watch


def test_the_line_is_told_while_the_call_lasts_and_not_kept_for_a_later_one(monkeypatch):
    """Its limit may become shorter while it runs: a single look shortly before the first one's end came too late."""
    told, lines = [], iter(["my.py, line 3", "my.py, line 3", "my.py, line 7"])
    monkeypatch.setattr(watch.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(watch.ray, "get_runtime_context", lambda: SimpleNamespace(get_actor_id=lambda: "a"))
    monkeypatch.setattr(watch, "line_running", lambda frame: next(lines, None))
    monkeypatch.setattr(watch, "_leave", lambda key, line: told.append(line))
    with watch.hang_watched(0.1):
        until_s = time.monotonic() + 30.0
        while len(told) < 3 and time.monotonic() < until_s:
            time.sleep(0.01)
    assert told == [b"my.py, line 3", b"my.py, line 7", b""], "each line once, and then none"
    with watch.hang_watched(10.0):
        pass
    assert len(told) == 3, "a short call tells nothing"


def test_a_call_that_ends_after_a_look_leaves_no_line(monkeypatch):
    told = []
    monkeypatch.setattr(watch.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(watch.ray, "get_runtime_context", lambda: SimpleNamespace(get_actor_id=lambda: "a"))
    monkeypatch.setattr(watch, "line_running", lambda frame: "my.py, line 3")
    monkeypatch.setattr(watch, "_leave", lambda key, line: told.append(line))
    until_s = time.monotonic() + 30.0
    with watch.hang_watched(0.1):
        while not told and time.monotonic() < until_s:
            time.sleep(0.01)
    while len(told) < 2 and time.monotonic() < until_s:
        time.sleep(0.01)
    assert told == [b"my.py, line 3", b""]
