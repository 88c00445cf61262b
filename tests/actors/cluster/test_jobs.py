"""A head that stumbles or vanishes while a job is followed: what is said, and with which exit code."""

import re
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
    submit.submit(None, None, address, None, None, (), detach=False, dry_run=False, attach=job, stop=None)


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
def test_a_stop_that_the_head_did_not_take_says_how_to_go_on(monkeypatch, invoke, method):
    use(monkeypatch, Head(method, GONE[0]))
    done = invoke("submit", "--stop", "job-1")
    assert done.exit_code == RAY_LOST
    assert re.search(r"may go on(.|\n)*relief-ray submit --stop job-1", done.stderr), done.stderr


@pytest.mark.parametrize("error", GONE[:3], ids=lambda error: type(error).__name__)
def test_a_head_that_vanishes_while_it_takes_a_job_may_have_begun_it(monkeypatch, tmp_path, invoke, error):
    use(monkeypatch, Head("submit_job", error))
    done = invoke("submit", "--working-dir", tmp_path, "--detach", "--", "data", "list")
    assert done.exit_code == RAY_LOST
    assert re.search(r"job data-list-\w+ may go on(.|\n)*--attach data-list-", done.stderr), done.stderr


ODD = "my token's file"


@pytest.mark.parametrize(
    ("typed", "again"),
    [
        ([], "relief-ray submit"),
        (["--token", "ray_token"], "relief-ray submit --token ray_token"),
        (["--token", ODD], "relief-ray submit --token 'my token'\"'\"'s file'"),
        (
            ["--address", "http://h:1", "--token=./ray_token"],
            "relief-ray submit --address http://h:1 --token ray_token",
        ),
    ],
)
@pytest.mark.parametrize("what", [["--detach", "--", "data", "list"], ["--attach", "job-1"], ["--stop", "job-1"]])
def test_hints_keep_the_options_that_reached_the_head(monkeypatch, tmp_path, invoke, typed, again, what):
    """Typed back, a hint asks the same head with the same token."""
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "")
    for name in (ODD, "ray_token"):
        (tmp_path / name).write_text("a" * 64)
        (tmp_path / name).chmod(0o600)
    use(monkeypatch, Head("" if "--detach" in what else "list_jobs", GONE[0]))
    said = invoke("submit", *typed, *what).stderr
    hints = re.findall(r"(?:follow|stop) it with: +(.*) (--attach|--stop) (\S+)", said)
    assert [(begin, option) for begin, option, _ in hints] == [(again, "--attach"), (again, "--stop")], said


class Taking(Head):
    """A head that keeps what it was sent."""

    def __init__(self):
        super().__init__("", None)
        self.sent = []

    def submit_job(self, **more):
        self.sent.append(more)


def test_a_jobs_variables_are_set_for_all_its_processes(monkeypatch, tmp_path, invoke):
    head = Taking()
    use(monkeypatch, head)
    typed = ["--env", "AWS_PROFILE=lab", "--env=EMPTY=", "--env", "URL=http://h/?a=b $ c"]
    done = invoke("submit", "--working-dir", tmp_path, "--detach", *typed, "--", "data", "list")
    assert done.exit_code == 0, done.stderr
    environment = head.sent[0]["runtime_env"]
    assert environment["env_vars"] == {"AWS_PROFILE": "lab", "EMPTY": "", "URL": "http://h/?a=b $ c"}
    assert "AWS_PROFILE" not in head.sent[0]["entrypoint"] + done.stderr, "it may be a secret"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("A", "expected NAME=VALUE"),
        ("=x", "expected NAME=VALUE"),
        ("1A=x", "expected NAME=VALUE"),
        ("A B=x", "expected NAME=VALUE"),
        ("grüße=x", "expected NAME=VALUE"),
        ("RAY_ADDRESS=h", "Ray's own"),
        ("RAY_AUTH_TOKEN=t", "Ray's own"),
        ("RELIEF_RAY_THREADS=2", "how Ray was started"),
        ("CUDA_VISIBLE_DEVICES=1", "training.device"),
        ("OMP_NUM_THREADS=8", "runtime.num_threads"),
        ("A=secret$HOME", "replaces by a variable of the node"),
        ("A=${B}", "replaces by a variable of the node"),
    ],
)
def test_a_variable_that_a_job_cannot_have_is_refused_by_name(tmp_path, monkeypatch, invoke, text, why):
    use(monkeypatch, None)
    done = invoke("submit", "--working-dir", tmp_path, "--dry-run", "--env", text, "--", "data", "list")
    assert done.exit_code == 2 and f"--env {text.partition('=')[0]}: " in done.stderr
    assert why in " ".join(done.stderr.split())
    assert "secret" not in done.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("grid smoke --bogus", "No such option: --bogus"),
        ("grid smoke --jobs many", "--jobs many: "),
        ("run", "Missing argument"),
        ("run demo --set", "requires an argument"),
        ("run demo --set seed", "expected path=value"),
        ("grid resume", "Missing argument"),
        ("data fetchh dsa", "No such command 'fetchh'"),
        ("run demo fedavg", "unexpected extra argument"),
        ("runs demo", "no command for a job; expected one of"),
        ("submit -- run demo", "no command for a job"),
        ("relief-ray", "no command for a job"),
    ],
)
def test_a_wrong_command_is_refused_before_anything_is_sent(tmp_path, monkeypatch, invoke, words, why):
    use(monkeypatch, None)
    done = invoke("submit", "--working-dir", tmp_path, "--", *words.split())
    assert done.exit_code == 2 and why in " ".join(done.stderr.split()), done.stderr
    assert "upload" not in done.stderr


@pytest.mark.parametrize(
    "words", ["grid smoke", "grid resume ~/relief-ray/x", "run mine.yaml --set=a=b", "resume s3://b/x", "data list"]
)
def test_a_right_command_is_carried_out_on_the_head_alone(tmp_path, invoke, words):
    done = invoke("submit", "--working-dir", tmp_path, "--dry-run", "--", *words.split())
    assert done.exit_code == 0 and done.stdout.startswith("upload: 0 files"), done.stderr


def test_a_reader_of_the_output_that_goes_away_is_not_the_heads_fault():
    def write(text):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        jobs.follow(Head("", None), "job-1", write)
