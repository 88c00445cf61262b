"""A head that stumbles or vanishes while a job is followed: what is said, and with which exit code."""

from types import SimpleNamespace

import pytest
import requests
from aiohttp import ClientResponseError, ServerDisconnectedError

from actors.cluster import jobs
from actors.commands import cluster as submit
from actors.terminal.exit_codes import RAY_LOST, Stopped

GONE = (
    requests.ConnectionError("connection refused"),
    ServerDisconnectedError(),
    ClientResponseError(SimpleNamespace(real_url="http://head"), (), status=502, message="bad gateway"),
    RuntimeError("Request failed with status code 500: Internal Server Error"),
)
DONE = SimpleNamespace(status=SimpleNamespace(is_terminal=lambda: True), driver_exit_code=5)


class Head:
    """A client of a head that knows one job, which ends with code 5; it fails with ``error`` at a method's calls.

    ``times``: how often it fails; then it is back.
    """

    def __init__(self, method, error, times=10**6):
        self.method, self.error, self.left = method, error, times

    def _ask(self, name):
        if name == self.method and self.left:
            self.left -= 1
            raise self.error

    def list_jobs(self):
        self._ask("list_jobs")
        return [SimpleNamespace(submission_id="job-1")]

    async def tail_job_logs(self, job):
        yield "first line\n"
        self._ask("tail_job_logs")

    def get_job_info(self, job):
        self._ask("get_job_info")
        return DONE

    def submit_job(self, **more):
        self._ask("submit_job")

    def stop_job(self, job):
        self._ask("stop_job")
        return True


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Waits take no time."""
    now = SimpleNamespace(s=0.0)
    played = SimpleNamespace(monotonic=lambda: now.s, sleep=lambda s: setattr(now, "s", now.s + s))
    monkeypatch.setattr(jobs, "time", played)


def use(monkeypatch, head):
    monkeypatch.setattr(jobs, "connect", lambda url: head)


def attach(job, address):
    submit.submit(None, None, address, None, None, detach=False, dry_run=False, attach=job, stop=None)


@pytest.mark.parametrize("error", GONE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("method", ["list_jobs", "get_job_info"])
def test_a_head_that_vanishes_is_no_fault_of_this_program(monkeypatch, capsys, method, error):
    use(monkeypatch, Head(method, error))
    with pytest.raises(Stopped) as stopped:
        attach("job-1", "head:8265")
    assert stopped.value.code == RAY_LOST
    said = str(stopped.value)
    assert said.startswith("the head does not answer (") and "job job-1 may go on" in said
    assert "relief-ray submit --address head:8265 --attach job-1" in said


@pytest.mark.parametrize("error", GONE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("method", ["tail_job_logs", "get_job_info"])
def test_a_head_that_stumbles_is_asked_again(monkeypatch, capsys, method, error):
    use(monkeypatch, Head(method, error, times=3))
    with pytest.raises(Stopped, match="job job-1 ended with exit code 5"):
        attach("job-1", None)
    assert capsys.readouterr().out == "first line\n"


@pytest.mark.parametrize("method", ["list_jobs", "stop_job"])
def test_a_stop_that_the_head_did_not_take_says_how_to_go_on(monkeypatch, method):
    use(monkeypatch, Head(method, GONE[0]))
    with pytest.raises(Stopped, match=r"may go on(.|\n)*--stop job-1"):
        submit.stop_command("job-1", None)


@pytest.mark.parametrize("error", GONE[:3], ids=lambda error: type(error).__name__)
def test_a_head_that_vanishes_while_it_takes_a_job_may_have_begun_it(monkeypatch, tmp_path, error):
    use(monkeypatch, Head("submit_job", error))
    options = {"address": None, "folder": tmp_path, "detach": True, "dry_run": False, "token": tmp_path / "token"}
    with pytest.raises(Stopped, match=r"job data-list-\w+ may go on(.|\n)*--attach data-list-"):
        submit.submit_command(["data", "list"], ["data"], **options)


def test_a_reader_of_the_output_that_goes_away_is_not_the_heads_fault():
    def write(text):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        jobs.follow(Head("", None), "job-1", write)
