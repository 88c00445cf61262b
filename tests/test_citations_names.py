"""Reconstructions say that they are."""

from relief_ray.citations import shown


def test_a_reconstruction_says_so():
    assert shown("fedicu") == "FedICU (reconstructed)" and "(reconstructed)" in shown("fedicu_table")
    assert shown("relief") == "relief"
