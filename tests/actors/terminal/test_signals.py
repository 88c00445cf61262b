"""What a signal does to a block of ``StopSignals`` and to a process that does not hear it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from actors.terminal import signals
from actors.terminal.exit_codes import Stopped
from actors.terminal.signals import StopSignals
from relief_ray.support.errors import UserError

ROOT = Path(__file__).parents[3]
ADVICE = "resume with: relief-ray resume runs/x"


@pytest.fixture(autouse=True)
def no_end_is_set(monkeypatch):
    """What the process of the tests remembers of its end goes with the test."""
    monkeypatch.setattr(signals, "_ending", signals._Ending())
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, by these tests too
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_first_signal_asks_to_stop_and_its_echo_is_no_second(number, code, capfd) -> None:
    """`timeout` signals its child and then the whole group."""
    before = signal.getsignal(number)
    with StopSignals(ADVICE) as stop:
        assert not stop.requested()
        signal.raise_signal(number)
        signal.raise_signal(number)
        assert stop.requested() and stop.code == code
    assert signal.getsignal(number) is before
    assert capfd.readouterr().err.count("stopping after this round") == 1


def test_a_second_signal_interrupts_and_leaves_as_the_line_that_resumes(monkeypatch) -> None:
    monkeypatch.setattr(signals, "_SAME_S", 0.0)
    with pytest.raises(Stopped, match=ADVICE) as caught, StopSignals(ADVICE):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("not interrupted")
    assert caught.value.code == 143, "the first signal's"


def test_a_promise_of_ten_seconds_is_one_of_the_constants():
    assert signals.INTERRUPT_S < signals.END_S <= 9.0, "the line that is printed says END_S + 1"


def test_what_a_stop_leaves_undone_may_change():
    with pytest.raises(Stopped, match="sync with: X"), StopSignals(ADVICE) as stop:
        stop.advise("sync with: X")
        os.kill(os.getpid(), signal.SIGINT)
        raise KeyboardInterrupt


def test_presses_in_quick_succession_are_not_echoes_of_one_another_for_ever(monkeypatch) -> None:
    """Each comes half a second after the one before: the third is 1 s after the first, which is no echo any more."""
    now_s, num_pressed = [100.0], 0
    monkeypatch.setattr(signals.time, "monotonic", lambda: now_s[0])
    # Its thread would wait on this clock.
    monkeypatch.setattr(signals._Ending, "within", lambda self, seconds, code: None)
    with pytest.raises(Stopped, match=ADVICE), StopSignals(ADVICE):
        for _ in range(5):
            num_pressed += 1
            signal.raise_signal(signal.SIGINT)
            now_s[0] += 0.5
    assert num_pressed == 3


def test_work_that_goes_on_is_interrupted_after_a_while(monkeypatch) -> None:
    monkeypatch.setattr(signals, "INTERRUPT_S", 0.2)
    began_s = time.monotonic()
    with pytest.raises(Stopped, match=ADVICE) as caught, StopSignals(ADVICE):
        signal.raise_signal(signal.SIGHUP)
        time.sleep(30.0)
    assert caught.value.code == 129 and 0.15 < time.monotonic() - began_s < 10.0


def test_what_fails_while_stopping_is_a_consequence_of_it_unless_the_user_can_mend_it() -> None:
    with pytest.raises(Stopped, match=ADVICE), StopSignals(ADVICE):
        signal.raise_signal(signal.SIGTERM)
        raise RuntimeError("Ray's connection is gone")
    with pytest.raises(UserError, match="disk"), StopSignals(ADVICE):
        signal.raise_signal(signal.SIGTERM)
        raise UserError("the disk is full")
    with pytest.raises(RuntimeError, match="no signal"), StopSignals(ADVICE):
        raise RuntimeError("no signal has come")


def test_a_ray_that_does_not_answer_ends_the_block_with_its_reason() -> None:
    with pytest.raises(Stopped) as caught, StopSignals(ADVICE) as stop:
        stop.lost("Ray's head (GCS) has not answered for 30 s")
        time.sleep(30.0)
    assert caught.value.code == 9
    assert str(caught.value) == f"error: Ray's head (GCS) has not answered for 30 s\n{ADVICE}"


PROGRAM = """
import signal, sys, time
from actors.terminal import signals

signals.END_S, signals.INTERRUPT_S, signals._LEAVE_S = 1.0, 0.3, 0.5
signals.end_on_signals()
with signals.StopSignals("resume with: X") as stop:
    print("ready", flush=True)
    while {condition}:
        try:
            time.sleep(0.01)
        except KeyboardInterrupt:
            pass
print("left", flush=True)
"""


def program(condition: str, number: signal.Signals, prefix: str = "") -> tuple[int, str]:
    """Exit code and output of a program that loops while ``condition``, signalled in the loop."""
    process = subprocess.Popen(
        [sys.executable, "-c", prefix + PROGRAM.format(condition=condition)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


def test_a_process_that_does_not_listen_has_ended_in_time_all_the_same() -> None:
    code, output = program("True", signal.SIGTERM)
    assert code == 143 and output.endswith("resume with: X\n") and "left" not in output


def test_a_main_thread_that_is_held_in_c_has_ended_in_time_all_the_same() -> None:
    """As Ray's own calls hold it while Ray is frozen: no handler of Python's is called."""
    held = "import ctypes\nlock, c = ctypes.create_string_buffer(64), ctypes.CDLL(None)\n"
    code, output = program("c.pthread_mutex_lock(lock) or c.pthread_mutex_lock(lock)", signal.SIGTERM, held)
    # On a busy machine the signal may come before the thread is held; then a handler has said so.
    assert code == 143 and output.endswith("resume with: X\n") and "left" not in output


def test_under_nohup_a_terminal_that_closes_is_none_of_our_business() -> None:
    ignored = "import signal, time\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\nuntil = time.monotonic() + 1.5\n"
    code, output = program("time.monotonic() < until", signal.SIGHUP, ignored)
    assert (code, output) == (0, "left\n")


def test_a_terminal_that_is_gone_takes_no_more_lines(tmp_path: Path) -> None:
    """Writing to it would raise, and the run would be said to have failed on its disk."""
    program = (
        "import os, sys, traceback\nfrom actors.terminal.signals import _write\n"
        "print('ready', flush=True)\nos.read(0, 1)\n"
        "try:\n    _write('stopping')\n    print('a round', flush=True)\n"
        "    print('a note', file=sys.stderr, flush=True)\n"
        "    how = 'saved'\nexcept BaseException:\n    how = traceback.format_exc()\n"
        "open(sys.argv[1], 'w').write(how)\n"
    )
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "saved")],
        stdin=subprocess.PIPE, stdout=theirs, stderr=theirs, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    os.close(theirs)
    said = b""
    while not said.endswith(b"\n"):  # it may come after the word; until then the child is writing
        said += os.read(ours, 100)
    assert said == b"ready\r\n"
    os.close(ours)
    process.communicate(b"x", timeout=60)
    assert (tmp_path / "saved").read_text() == "saved" and process.returncode == 0
