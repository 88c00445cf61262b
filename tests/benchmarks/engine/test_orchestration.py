from time import sleep

from benchmarks.engine.orchestration import Calls


def inner():
    sleep(0.05)


def outer():
    inner()
    sleep(0.02)


def idle():
    raise AssertionError("never called")


def test_seconds_include_what_is_called_and_are_zero_for_what_is_not():
    calls = Calls(lambda: [outer(), outer()])
    assert 0.1 <= calls.seconds(inner) < calls.seconds(outer) <= calls.total_s + 1e-3
    assert calls.seconds(outer) >= 0.14 and calls.seconds(idle) == 0.0
