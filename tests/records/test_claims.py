"""A claims file: what it may hold, and when a plan takes it in."""

import pytest

from relief_ray.records.cells import (
    CLAIMS_FILE,
    Claim,
    PlanFile,
    PlannedCell,
    PlannedClaims,
    count_begun,
    parse_claims,
    read_claims,
    read_plan_file,
    register_claims,
    write_plan_file,
)
from relief_ray.records.schema import MethodFacts
from relief_ray.support.errors import UserError

HEAD = "data: dsa\nsplit: held_out_subject\nclaims:\n"
ONE = HEAD + "  - {first: v1, second: fedavg}\n"


def test_a_file_in_words(tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text(
        HEAD + "  - {first: v1, second: fedavg, figure: f1_rare}\n"
        "  - {first: relief, second: fedavg, margin: 1.0}\n"
        "  - {first: fedprox, second: fedavg, text: Tethers help}\n"
    )
    claims, content = read_claims(path)
    assert content == path.read_bytes()
    assert [c.text or c.brief for c in claims.claims] == [
        "v1 > fedavg in rare-modality F1", "relief not worse than fedavg by 1 point in F1", "Tethers help",
    ]  # fmt: skip
    assert Claim(first="a", second="b", margin=2.5).brief == "a not worse than b by 2.5 points in F1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + "".join(f"  - {{first: v{i}, second: fedavg}}\n" for i in range(7)), "7 claims, expected at most 6"),
        (ONE + "  - {first: v1, second: fedavg}\n", "'v1 > fedavg in F1' is named twice"),
        (HEAD + "  - {first: v1, second: v1}\n", "first and second are both 'v1'"),
        (HEAD + "  - {first: v1, second: v2, margin: -1}\n", "claims.0.margin"),
        (HEAD + "  - {first: v1, second: v2, margin: true}\n", "claims.0.margin"),
        (HEAD + "  - {first: v1, second: v2, margin: '3'}\n", "claims.0.margin"),
        (HEAD + "  - {first: v1, second: v2, figure: f-2}\n", "claims.0.figure = 'f-2': expected the name of a figure"),
        (HEAD + "  - {first: v1, second: v2, why: no}\n", "claims.0.why"),
        ("data: dsa\nsplit: x\nclaims: []\n", "claims = []: expected at least one claim"),
        (HEAD + "  - {first: v1, seconds: v2}\n", "unknown key 'claims.0.seconds' (did you mean 'second'?)"),
        ("data: [", "cannot be read as YAML"),
        ("- 1\n", "c.yaml: holds [1]: expected a mapping, e.g. "),
        ("- {first: v1, second: v2}\n", "expected a mapping, e.g. "),
        ("x\n", "c.yaml: holds 'x': expected a mapping, e.g. "),
        ("", "expected a mapping, e.g. "),
        (HEAD + "  - 1\n", "c.yaml: claims.0 = 1: expected a mapping"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_else(text, words):
    with pytest.raises(UserError) as error:
        parse_claims(text.encode(), "c.yaml")
    assert words in str(error.value) and str(error.value).startswith("c.yaml: ")
    assert "item" not in str(error.value), "a list with a wrong claim is not empty"
    _, has_example, example = str(error.value).partition("e.g. ")
    file = example if example.startswith("claims") else f"claims: [{example}]"
    assert not has_example or parse_claims(file.encode(), "c.yaml").claims, "the example is a file, or a claim"


def test_a_plan_takes_claims_in_before_its_first_cell_alone(tmp_path):
    source, folder = tmp_path / "mine.yaml", tmp_path / "plan"
    source.write_text(ONE)
    known = register_claims(folder, source, None, begun=0, now="T1")
    assert known.at == "T1" and (folder / CLAIMS_FILE).read_bytes() == source.read_bytes()
    assert register_claims(folder, source, known, begun=3, now="T2") == known, "the same again"
    assert register_claims(folder, None, known, begun=3, now="T2") == known, "a resume names none"
    source.write_text(ONE.replace("v1", "v2"))
    other = register_claims(folder, source, known, begun=0, now="T3")
    assert other.sha256 != known.sha256 and other.at == "T3", "nothing was computed yet"
    with pytest.raises(UserError, match="holds 3 cells that were begun under other claims, named T1"):
        register_claims(folder, source, known, begun=3, now="T4")
    with pytest.raises(UserError, match="holds 1 cells that were begun without any"):
        register_claims(folder, source, None, begun=1, now="T4")
    with pytest.raises(UserError, match="name a claims file"):
        register_claims(folder, tmp_path / "none.yaml", None, begun=0, now="T4")


def test_a_plan_file_keeps_them(tmp_path):
    path = tmp_path / "plan.json"
    facts = MethodFacts(name="v1", title="V1", kind="ablation")
    cell = PlannedCell(folder="a", label="v1", method=facts, config={"seed": 1})
    plan = PlanFile(kind="grid", name="g", cells=(cell,), claims=PlannedClaims(sha256="ab", at="T1"))
    write_plan_file(path, plan)
    assert read_plan_file(path) == plan
    (tmp_path / "a").mkdir()
    assert count_begun(tmp_path, ["a", "b"]) == 0
    (tmp_path / "a" / "run.json").touch()
    assert count_begun(tmp_path, ["a", "b"]) == 1
