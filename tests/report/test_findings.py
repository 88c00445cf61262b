"""The sentences about what surprised."""

from relief_ray.report.comparison import compare_runs
from relief_ray.report.findings import surprises


def test_surprises_follow_the_numbers(make, groups):
    def said(*runs):
        return "\n".join(surprises(compare_runs(runs)))

    every = make("relief", trained=groups)
    some = make("relief", trained={**groups, 2: ("fusion.A.acc", "head.1")})
    assert "ranking decided nothing: of 2.00 free slots" in said(every)
    assert "decided 0.33 of 1.67 free slots" in said(some)
    rising = [make("v1", scores=(0.9,)), make("relief", scores=(0.8,)), make("v2", scores=(0.7,))]
    assert "By mean F1 (%), untested: v1 90.0 > relief 80.0 > v2 70.0; the paper's order. Neighbours" in said(*rising)
    falling = [make("v1", scores=(0.5,)), make("relief", scores=(0.8,))]
    assert "relief 80.0 > v1 50.0; the paper's order is v1 > relief." in said(*falling)
    bound = make("full_only", round_s=0.5, scores=(0.3,))
    with_bound = said(make("fedavg", scores=(0.4,)), make("relief", round_s=1.0, scores=(0.4,)), bound)
    assert "`full_only`) is faster still: 4.00x against 2.00x; it costs 10.0 points" in with_bound
    fedavg, relief = make("fedavg", scores=(0.4,)), make("relief", round_s=1.0, scores=(0.4,))
    better = said(fedavg, relief, make("full_only", round_s=0.5, scores=(0.45,)))
    assert "4.00x against 2.00x; it gains 5.0 points of F1 against FedAvg." in better
    even = said(make("relief", round_s=1.0), make("full_only", round_s=0.9999))
    assert "`full_only`) is as fast as RELIEF, 2.00x." in even, "2.00x against 2.00x would say nothing"
    slower = said(make("relief", round_s=1.0), make("full_only", round_s=1.5))
    assert "`full_only`) is" not in slower
    assert "Under FedAvg, device types without mag still move fusion.A.mag by 1.00" in with_bound
