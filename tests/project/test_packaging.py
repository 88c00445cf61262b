"""Test versions, pins and the wheel."""

import importlib.metadata
import re
import zipfile

import pytest

import relief_ray
from tests.project.tree import PACKAGES, ROOT, name_of


def project_file(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_version_is_stated_alike_everywhere():
    assert f'version = "{relief_ray.__version__}"' in project_file("pyproject.toml")
    assert f"version: {relief_ray.__version__}" in project_file("CITATION.cff")
    assert f"## [{relief_ray.__version__}]" in project_file("CHANGELOG.md")


def test_tested_set_pins_every_direct_dependency_without_local_tags():
    pins = re.findall(r"^([\w.-]+)==([^;\s]+)", project_file("constraints.txt"), flags=re.M)
    assert not [f"{name}=={version}" for name, version in pins if "+" in version]
    pinned = {re.sub(r"[-_.]+", "-", name).lower() for name, _ in pins}
    lists = re.findall(
        r"^(dependencies|server|docs|dev) = \[\n(.*?)^\]", project_file("pyproject.toml"), flags=re.M | re.S
    )
    assert [name for name, _ in lists] == ["dependencies", "server", "dev", "docs"]
    required = {
        re.sub(r"[-_.]+", "-", n).lower() for _, body in lists for n in re.findall(r'^    "([\w.-]+)', body, re.M)
    }
    assert required - pinned == set()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The project's wheel, built here by its own build backend."""
    builder = pytest.importorskip("hatchling.builders.wheel", reason="hatchling comes with the dev extra")
    folder = tmp_path_factory.mktemp("wheel")
    return next(builder.WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"]))


def test_wheel_holds_the_three_packages_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.partition("/")[0] for n in names if ".dist-info/" not in n} == set(PACKAGES)
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    files = {name_of(path) for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()}
    assert {name for name in files if "__pycache__" not in name} <= set(names)
    data = (
        "data/assets/dsa_mini.npz",
        "strategies/citations.bib",
        "report/paper.json",
    )
    assert {f"relief_ray/{name}" for name in data} | {"relief_ray/studies/claims/demo.yaml"} <= set(names)


@pytest.mark.ci
def test_installed_wheel_owns_its_package_names(wheel, tmp_path, monkeypatch):
    # `actors` is a generic name: were a dependency to ship one too, it would show here.
    zipfile.ZipFile(wheel).extractall(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    # Python 3.10's `packages_distributions` knows no wheel without a top_level.txt.
    owners: dict[str, set[str]] = {package: set() for package in PACKAGES}
    for distribution in importlib.metadata.distributions():
        for name in {file.parts[0] for file in distribution.files or ()} & set(PACKAGES):
            owners[name].add(distribution.metadata["Name"])
    assert owners == {package: {"relief-ray"} for package in PACKAGES}
    (script,) = importlib.metadata.entry_points(name="relief-ray", group="console_scripts").select(
        value="actors.cli.main:main"
    )
    assert script.value == "actors.cli.main:main"
