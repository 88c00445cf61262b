"""Names of methods that differ in their own fields."""

from relief_ray.records.schema import MethodFacts
from relief_ray.report.runs import choice_kind, chosen_keys, variant_names


def test_a_preset_keeps_its_name_in_any_company():
    usual, half = (
        ("relief", {"strategy": {"name": "relief", "gamma": 0.9}}),
        ("relief", {"strategy": {"name": "relief", "gamma": 0.5}}),
    )
    assert variant_names([usual]) == ["relief"]
    assert variant_names([half]) == ["relief (gamma=0.5)"]
    assert variant_names([half, usual]) == ["relief (gamma=0.5)", "relief"]
    assert variant_names(
        [("v2", {"strategy": {"name": "relief", "mean": "participants", "mandatory": False, "gamma": 0.5}})]
    ) == ["v2 (gamma=0.5)"]


def test_a_reconstructed_method_is_found_under_the_name_it_is_shown_by():
    assert variant_names([("FedICU (reconstructed)", {"strategy": {"name": "fedicu", "kappa": 0.25}})]) == [
        "FedICU (reconstructed) (kappa=0.25)"
    ]


def test_cells_of_a_user_s_own_method_say_in_what_they_differ():
    one, other = (
        ("mine:M", {"strategy": {"name": "mine:M", "k": 1}}),
        ("mine:M", {"strategy": {"name": "mine:M", "k": 2}}),
    )
    assert variant_names([one, other]) == ["mine:M (k=1)", "mine:M (k=2)"]
    assert variant_names([one, one]) == ["mine:M", "mine:M"]


def own(k, *varied):
    """A cell of one's own method, whose class has k = 1 by default."""
    facts = MethodFacts(name="M", title="M", kind="own", varied=varied)
    return ("M", {"strategy": {"name": "mine:M", "k": k}}), facts


def names(*cells):
    methods, facts = zip(*cells, strict=True)
    return variant_names(methods, facts)


def test_the_defaults_of_a_user_s_own_class_keep_the_bare_name():
    assert names(own(1), own(2, "k")) == ["M", "M (k=2)"]
    assert names(own(2, "k")) == ["M (k=2)"], "as it is beside others"
    assert names(own(3, "k"), own(2, "k")) == ["M (k=3)", "M (k=2)"]
    assert names(own(1), own(4)) == ["M (k=1)", "M (k=4)"], "the default was another one when the first was computed"


def test_a_level_of_a_grid_gives_its_name_and_its_values_where_they_changed():
    def cell(level, epochs, **strategy):
        keys = ["training.epochs", *(f"strategy.{key}" for key in strategy)]
        choice = {"kind": "level", "parameters": keys if level else [], "level": level}
        return "relief", {"strategy": {"name": "relief", **strategy}, "training": {"epochs": epochs}, "choice": choice}

    usual, brief, other = cell("", 5), cell("e1", 1, gamma=0.5), cell("e1", 2, gamma=0.5)
    assert variant_names([usual, brief, brief]) == ["relief", "relief (e1)", "relief (e1)"]
    both = variant_names([usual, brief, other])
    assert both == ["relief", "relief (epochs=1, gamma=0.5)", "relief (epochs=2, gamma=0.5)"]


def test_a_tuned_method_keeps_its_name():
    choice = {"kind": "tuned", "parameters": ["training.lr", "strategy.gamma"]}
    config = {"strategy": {"name": "relief", "gamma": 0.5}, "choice": choice}
    assert variant_names([("relief", config)]) == ["relief"]
    assert (choice_kind(config), chosen_keys(config)) == ("tuned", ("training.lr", "strategy.gamma"))
    assert (choice_kind({"choice": None}), chosen_keys({})) == ("", ())
