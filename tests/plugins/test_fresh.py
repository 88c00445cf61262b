"""A fresh process answers a call, tells, hears of a stop, and its end is an error of the caller."""

import os
import signal

import pytest

from relief_ray.plugins.fresh import Asker, call_fresh
from relief_ray.support.errors import UserCodeFailed, UserError


def pid_of(asker: Asker, answer: object) -> object:
    asker.tell("here", os.getpid())
    return answer


def end(asker: Asker, code: int) -> None:
    os._exit(code)


def wait(asker: Asker) -> str:
    return "stopped" if asker.stopping.wait(30) else "not stopped"


def refuse(asker: Asker) -> None:
    raise UserError("no") from OSError(28, "full")


def call(function, *arguments, hear=lambda *_: None, stop=lambda: False):
    return call_fresh(function, *arguments, hear=hear, stop=stop)


@pytest.mark.ci
def test_a_fresh_process_answers_tells_stops_and_says_how_it_ended():
    heard = []
    assert call(pid_of, {"a": 1}, hear=lambda *words: heard.append(words)) == {"a": 1}
    assert heard[0][0] == "here" and heard[0][1] != os.getpid()
    assert call(wait, stop=lambda: True) == "stopped"
    with pytest.raises(UserCodeFailed, match=r"exit code 3"):
        call(end, 3)
    with pytest.raises(UserError, match=r"^no$") as caught:
        call(refuse)
    assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == 28


def kill(asker: Asker) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Unsendable(Exception):
    """Needs two words, so that it cannot be read back."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


def fail(asker: Asker) -> None:
    raise Unsendable("one", "two")


@pytest.mark.ci
def test_a_killed_process_and_an_error_that_cannot_travel_are_said_in_words():
    with pytest.raises(UserCodeFailed, match=r"signal 9"):
        call(kill)
    with pytest.raises(RuntimeError, match=r"Unsendable: one"):
        call(fail)


@pytest.mark.ci
def test_an_interrupt_here_is_one_there_too(tmp_path):
    def hear(*words: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(interrupted, str(tmp_path / "seen"), hear=hear)
    assert (tmp_path / "seen").read_text() == "kept"


def interrupted(asker: Asker, path: str) -> None:
    try:
        asker.tell("begun")
        asker.stopping.wait(30)
        asker.stopping.clear()
        asker.stopping.wait(30)
    except KeyboardInterrupt:
        with open(path, "w") as file:
            file.write("kept")
        raise
