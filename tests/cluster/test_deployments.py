"""The files of `cluster/`: accepted by those who read them, and what they start is enough for the default fleet."""

import configparser
import copy
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml

from actors.cli.main import app
from actors.runtime.placement import plan_actors
from relief_ray.config.experiment import parse
from relief_ray.data.formats.dsa import SPEC
from relief_ray.devices.fleet import build_fleet

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with the dev extra")
ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "cluster"
# Schemas of other projects, beside the checkout.
SCHEMAS = ROOT.parent / "shared" / "schemas"
FILES = {
    "kuberay/raycluster.yaml": "ray.io_rayclusters.yaml",
    "kuberay/rayjob.yaml": "ray.io_rayjobs.yaml",
    "docker/compose.yaml": "compose-spec.json",
    "docker/gpu.yaml": "compose-spec.json",
}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def load(name: str) -> dict:
    return yaml.safe_load((CLUSTER / name).read_text(encoding="utf-8"))


def closed(schema: object) -> object:
    """The schema with every object closed that names its keys: an unknown one is an error, not silently dropped."""
    if isinstance(schema, list):
        return [closed(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "patternProperties" in schema
        parts |= {} if is_open else {"additionalProperties": False}
    return parts


def validator(name: str) -> "jsonschema.Validator":
    path = SCHEMAS / FILES[name]
    if not path.is_file():
        pytest.skip(f"the schema is not here: {path}")
    schema = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    if schema.get("kind") == "CustomResourceDefinition":
        (schema,) = (v["schema"]["openAPIV3Schema"] for v in schema["spec"]["versions"] if v["name"] == "v1")
        return jsonschema.Draft202012Validator(closed(schema))
    return jsonschema.Draft7Validator(schema)


@pytest.fixture(scope="module")
def validators() -> dict[str, "jsonschema.Validator"]:
    return {}


@pytest.mark.ci
@pytest.mark.parametrize("name", FILES)
def test_the_file_is_valid_and_its_mutants_are_not(name, validators):
    """A letter more in any key that a schema names, or another type at any leaf, has to be noticed."""
    validators[name] = check = validator(name)
    content = load(name)
    assert not [f"{list(e.absolute_path)}: {e.message}" for e in check.iter_errors(content)]
    for part in ["spec"] if "spec" in content else ["services"]:
        mutants = list(mutants_of(content, (part,), free=FREE))
        unnoticed = [where for where, mutant in mutants if check.is_valid(mutant)]
        assert len(mutants) > (5 if name == "docker/gpu.yaml" else 30) and not unnoticed


# Whose keys or values are anyone's choice.
FREE = {"labels", "rayStartParams", "environment", "services", "resources", "requests", "limits", "build", "x-node"}
FREE |= {"args"}


def mutants_of(content: dict, path: tuple, free: set) -> Iterator[tuple[tuple, dict]]:
    """Copies of the content with one typo in a key, or one value of another type, below ``path``."""
    place = content
    for step in path:
        place = place[step]
    for key, value in list(place.items() if isinstance(place, dict) else enumerate(place)):
        if isinstance(place, dict) and path[-1] not in free:
            yield (*path, f"{key}x"), edited(content, path, key, f"{key}x", value)
            if not isinstance(value, list | dict) and key not in ("cpus", "shm_size", "cpu", "memory"):
                yield (*path, key), edited(content, path, key, key, {"of": ["another type"]})
        if isinstance(value, list | dict) and (path[-1] != "depends_on"):
            yield from mutants_of(content, (*path, key), free)


def edited(content: dict, path: tuple, old: str, new: str, value: object) -> dict:
    mutant = copy.deepcopy(content)
    place = mutant
    for step in path:
        place = place[step]
    del place[old]
    place[new] = value
    return mutant


# What nodes offer ---------------------------------------------------------------------------------------------------


def resources_of(group: dict) -> dict[str, float]:
    """What a pod of a group tells Ray: a shell unquotes the value, then it is JSON."""
    params = group["rayStartParams"]
    return {"CPU": float(params["num-cpus"]), **json.loads(shlex.split(params["resources"])[0])}


def kuberay(spec: dict) -> list[dict[str, float]]:
    workers = [resources_of(g) for g in spec["workerGroupSpecs"] for _ in range(g["replicas"])]
    return [resources_of(spec["headGroupSpec"]), *workers]


def ray_up() -> list[dict[str, float]]:
    types = load("ray-up.yaml")["available_node_types"]
    return [t["resources"] for t in types.values() for _ in range(t.get("max_workers", 1))]


def our_services() -> dict[str, dict]:
    """The nodes: services of our image; the others are of a profile that one asks for."""
    services = load("docker/compose.yaml")["services"]
    return {name: s for name, s in services.items() if "profiles" not in s}


def compose() -> list[dict[str, float]]:
    lines = [shlex.split(s["command"]) for s in our_services().values()]
    typed = [line for line in lines if "--type" in line]
    assert len(typed) == len(lines) - 1
    return [{f"type_{w[w.index('--type') + 1]}": float(w[w.index("--count") + 1])} for w in typed]


@pytest.mark.parametrize(
    "offers",
    [
        lambda: kuberay(load("kuberay/raycluster.yaml")["spec"]),
        lambda: kuberay(load("kuberay/rayjob.yaml")["spec"]["rayClusterSpec"]),
        ray_up,
        compose,
    ],
    ids=["raycluster", "rayjob", "ray-up", "compose"],
)
def test_the_default_fleet_finds_its_types(offers):
    fleet, types = build_fleet(parse({}).fleet, SPEC.names, SPEC.subjects, SPEC.name)
    nodes = offers()
    resources = {name: device.ray_resources for name, device in types.items()}
    assert plan_actors(fleet, resources, "typed", nodes).mode == "typed"
    with pytest.raises(ValueError, match="type_c: needed 2"):
        plan_actors(fleet, resources, "typed", [node for node in nodes if "type_c" not in node])


def test_a_job_and_a_cluster_are_the_same_cluster():
    cluster, job = load("kuberay/raycluster.yaml")["spec"], load("kuberay/rayjob.yaml")["spec"]["rayClusterSpec"]
    assert cluster == job and cluster["authOptions"] == {"mode": "token"}


def test_records_of_a_job_lie_on_the_claimed_volume():
    mounts = mounts_of(pods()[0])
    words = shlex.split(load("kuberay/rayjob.yaml")["spec"]["entrypoint"])
    (place,) = (path for path in mounts if words[words.index("--out") + 1].startswith(path + "/"))
    assert mounts[place] == ("relief-records", False)


def pods() -> list[dict]:
    """The pods of the job's cluster, its head first."""
    spec = load("kuberay/rayjob.yaml")["spec"]["rayClusterSpec"]
    return [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def mounts_of(pod: dict) -> dict[str, tuple[str, bool]]:
    """By path in the pod's container, the claim behind it and whether it is for reading."""
    claims = list(yaml.safe_load_all((CLUSTER / "kuberay/volumes.yaml").read_text()))
    names = {claim["metadata"]["name"] for claim in claims}
    behind = {v["name"]: v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"]}
    (container,) = pod["containers"]
    mounts = {m["mountPath"]: (behind[m["name"]], m.get("readOnly", False)) for m in container["volumeMounts"]}
    assert {claim for claim, _ in mounts.values()} == set(behind.values()) <= names
    return mounts


def dockerfile() -> list[str]:
    """The instructions of the image."""
    text = (CLUSTER / "docker/Dockerfile").read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_every_node_has_the_data_sets_for_reading_where_the_image_looks_for_them():
    (env,) = (line for line in dockerfile() if line.startswith("ENV "))
    (place,) = (word.partition("=")[2] for word in env.split() if word.startswith("RELIEF_DATA="))
    assert all(mounts_of(pod)[place] == ("relief-data", True) for pod in pods())
    assert all(f"${{RELIEF_DATA:-./data}}:{place}:ro" in s["volumes"] for s in our_services().values())


def test_the_image_runs_as_a_user_who_owns_what_it_writes_and_keeps_no_downloads():
    lines = dockerfile()
    assert lines[0].startswith("ARG PYTHON=") and lines[1] == "FROM python:${PYTHON}-slim"
    kinds = [line.partition(" ")[0] for line in lines]
    assert lines[len(kinds) - 1 - kinds[::-1].index("USER")] == "USER relief"
    installing = next(i for i, line in enumerate(lines) if "pip install" in line)
    assert lines.index("ARG PIP_NO_CACHE_DIR=1") < installing
    (user,) = (line for line in lines if "useradd" in line)
    number = next(line.partition("=")[2] for line in lines if line.startswith("ARG USER_ID="))
    written = {"/records", *(v.split(":")[1] for v in our_services()["head"]["volumes"] if not v.endswith(":ro"))}
    assert written <= set(user.split())
    for pod in pods():
        rights = pod["securityContext"]
        assert rights == {"runAsNonRoot": True, "runAsUser": int(number), "fsGroup": int(number)}
    assert {s["build"]["args"]["USER_ID"] for s in our_services().values()} == {f"${{USER_ID:-{number}}}"}


def test_the_ports_of_containers_are_this_machines_alone():
    published = {p for s in load("docker/compose.yaml")["services"].values() for p in s.get("ports", [])}
    assert published == {"127.0.0.1:8265:8265", "127.0.0.1:3000:3000"}
    words = shlex.split(our_services()["head"]["command"])
    assert words[words.index("--dashboard-host") + 1] == "0.0.0.0", "else nothing answers at the published port"


def test_a_gpu_is_asked_for_where_it_is_wished():
    assert set(load("docker/gpu.yaml")["services"]) == {"type-a"}
    cluster = load("kuberay/raycluster.yaml")
    for step in load("kuberay/gpu.yaml"):
        *parents, last = (part.replace("~1", "/") for part in step["path"].strip("/").split("/"))
        place = cluster
        for part in parents:
            place = place[int(part) if isinstance(place, list) else part]
        assert step["op"] == "add" and last not in place
        place[last] = step["value"]
    group = cluster["spec"]["workerGroupSpecs"][0]
    (container,) = group["template"]["spec"]["containers"]
    assert group["groupName"] == "type-a"
    assert [container["resources"][kind]["nvidia.com/gpu"] for kind in ("limits", "requests")] == [1, 1]
    assert (
        "GPU"
        in next(t for name, t in load("ray-up.yaml")["available_node_types"].items() if name == "type_a")["resources"]
    )


def test_prometheus_and_grafana_find_what_the_head_and_the_image_have():
    """The files behind each path in a container, and names that several of them give."""
    services = load("docker/compose.yaml")["services"]
    head, prometheus, grafana = (services[name] for name in ("head", "prometheus", "grafana"))
    mounted = {}
    for volume in (*prometheus["volumes"], *grafana["volumes"]):
        source, place, mode = volume.split(":")
        assert mode == "ro"
        if source.startswith("."):
            assert (CLUSTER / "docker" / source).is_file(), source
            mounted[place] = CLUSTER / "docker" / source
    providers = yaml.safe_load((CLUSTER / "monitoring/provider.yml").read_text())["providers"]
    ours, rays = (provider["options"]["path"] for provider in providers)
    assert [path.name for place, path in mounted.items() if place.startswith(f"{ours}/")] == ["dashboard.json"]
    (scrape,) = yaml.safe_load((CLUSTER / "monitoring/prometheus.yml").read_text())["scrape_configs"]
    (listed,) = scrape["file_sd_configs"][0]["files"]
    shared = "ray:/tmp/ray"
    assert shared in head["volumes"] and rays.startswith("/tmp/ray/") and listed.startswith("/tmp/ray/")
    assert f"{shared}:ro" in prometheus["volumes"] and f"{shared}:ro" in grafana["volumes"]
    (source,) = yaml.safe_load((CLUSTER / "monitoring/datasource.yml").read_text())["datasources"]
    asked = head["environment"]
    assert source["url"] == "$PROMETHEUS_URL" and source["name"] == asked.get("RAY_PROMETHEUS_NAME", "Prometheus")
    assert asked["RAY_PROMETHEUS_HOST"] == grafana["environment"]["PROMETHEUS_URL"] == "http://prometheus:9090"
    assert asked["RAY_GRAFANA_HOST"] == "http://grafana:3000"
    assert asked["RAY_GRAFANA_IFRAME_HOST"].removeprefix("http://") + ":3000" in grafana["ports"]
    assert "GF_SECURITY_ALLOW_EMBEDDING" in grafana["environment"], "Ray's dashboard shows Grafana in a frame"


def test_the_variables_that_point_to_prometheus_and_grafana_are_rays():
    from ray.dashboard.modules.metrics import metrics_head

    known = {v for name, v in vars(metrics_head).items() if name.endswith("_ENV_VAR")}
    given = {name for name in our_services()["head"]["environment"] if "PROMETHEUS" in name or "GRAFANA" in name}
    assert len(given) == 3 and given <= known


# Ray's own checks ---------------------------------------------------------------------------------------------------


def ray_refuses(content: dict) -> str:
    """What Ray's launcher says against a file; empty where it takes it. Nothing is started."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    try:
        validate_config(prepare_config(copy.deepcopy(content)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_ray_takes_the_launchers_file_and_refuses_its_mutants():
    content = load("ray-up.yaml")
    assert ray_refuses(content) == ""
    types = content["available_node_types"]
    for mutant in (
        {**content, "setup_comands": []},
        {**content, "max_workers": "three"},
        {**content, "head_node_type": "server"},
        {**content, "auth": {"ssh_usr": "ubuntu"}},
        {**content, "available_node_types": {**types, "type_c": {"resources": {"type_c": 0.5}, "node_config": {}}}},
        {**content, "available_node_types": {**types, "type_c": {"resources": {"type_c": 1}}}},
    ):
        assert ray_refuses(mutant)


def test_the_launchers_commands_are_those_of_ray():
    import click
    from ray.scripts.scripts import start

    content = load("ray-up.yaml")
    for line in (content["head_start_ray_commands"][-1], content["worker_start_ray_commands"][-1]):
        words = shlex.split(line.partition("ray start")[2])
        with click.Context(start) as context:
            values, rest, _ = start.make_parser(context).parse_args(words)
        # It has to return: the launcher waits for it.
        assert not rest and "--block" not in words and values["disable_usage_stats"]


# Commands of ours ---------------------------------------------------------------------------------------------------


def accepted(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What our command line says against words; empty where it takes them. No command's work is done."""
    root = typer.main.get_command(app)
    stack = [root]
    while stack:
        command = stack.pop()
        below = getattr(command, "commands", None)
        stack += list(below.values()) if below else []
        if below is None:
            command.callback = lambda **_: None
    with pytest.raises(SystemExit) as end:
        root.main(words, prog_name="relief-ray")
    return "" if end.value.code == 0 else capsys.readouterr().err


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True, comment_prefixes=("#", ";"))
    parser.optionxform = str
    parser.read_string((CLUSTER / "systemd" / name).read_text(encoding="utf-8"))
    return parser


def variables() -> dict[str, str]:
    lines = (CLUSTER / "systemd" / "env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def command_of(name: str) -> list[str]:
    """The words of a unit's command, its variables put in as systemd does: `$NAME` as words of its own."""
    program, *words = unit(name)["Service"]["ExecStart"].split()
    assert program.endswith("/.venv/bin/relief-ray")
    return [part for word in words for part in (variables()[word[1:]].split() if word.startswith("$") else [word])]


UNITS = ("relief-ray-head.service", "relief-ray-node.service")


@pytest.mark.parametrize("name", UNITS)
def test_units_come_back_always_and_say_what_our_command_line_takes(name, capsys):
    service = unit(name)["Service"]
    assert service["Restart"] == "always" and unit(name)["Unit"]["StartLimitIntervalSec"] == "0"
    assert service["OOMPolicy"] == "continue" and service["EnvironmentFile"] == "/etc/relief-ray/env"
    assert accepted(command_of(name), capsys) == ""
    assert "No such option" in accepted([*command_of(name), "--bogus"], capsys)


@pytest.mark.parametrize("name", UNITS)
def test_the_units_user_owns_the_folder_in_which_it_writes_before_it_starts(name):
    """The head writes its token there, and jobs their records."""
    service = unit(name)["Service"]
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    steps = page.partition("## Systemd")[2].partition("```sh\n")[2].partition("```")[0]
    owned = f"sudo chown {service['User']}: {service['WorkingDirectory']}"
    assert owned in steps and steps.index(owned) < steps.index("systemctl enable")
    assert variables()["RAY_AUTH_TOKEN_PATH"].startswith(service["WorkingDirectory"])


@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_the_units(name, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    # It looks whether the program is there.
    text = (CLUSTER / "systemd" / name).read_text().replace("/opt/relief-ray/.venv/bin/relief-ray", sys.executable)
    for content, is_good in ((text, True), (text.replace("Restart=", "Restartt="), False)):
        (tmp_path / name).write_text(content)
        words = ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)]
        done = subprocess.run(words, capture_output=True, text=True)
        ours = [line for line in (done.stdout + done.stderr).splitlines() if name in line]
        assert (not ours) == is_good, done.stderr


def test_containers_say_what_our_command_line_takes(capsys):
    lines = [s["command"] for s in our_services().values()]
    by_shell, _, command = load("kuberay/rayjob.yaml")["spec"]["entrypoint"].partition(" ")
    assert by_shell == "exec", "a shell that stays keeps the job from being stopped"
    lines.append(command)
    for program, *words in map(shlex.split, lines):
        assert program == "relief-ray" and accepted(words, capsys) == "", words


def test_one_image_and_one_version_of_ray():
    (pin,) = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("ray==")]
    specs = [load("kuberay/raycluster.yaml")["spec"], load("kuberay/rayjob.yaml")["spec"]["rayClusterSpec"]]
    assert {s["rayVersion"] for s in specs} == {pin.removeprefix("ray==")}
    pods = [g["template"]["spec"] for s in specs for g in (s["headGroupSpec"], *s["workerGroupSpecs"])]
    images = {c["image"] for pod in pods for c in pod["containers"]}
    images |= {s["image"] for s in our_services().values()}
    assert len(images) == 1 and f"-t {images.pop()}" in (CLUSTER / "docker" / "Dockerfile").read_text()
