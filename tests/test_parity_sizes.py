"""Parity where the elements of one tensor are sums of terms of very different size."""

import pytest
import torch

from apexbench.components import softmax
from apexbench.measuring import parity


@pytest.mark.parametrize("mask", ["causal", "padding"])
@pytest.mark.parametrize("scope", ["softmax", "attention"])
def test_each_element_of_attention_is_judged_by_the_size_of_its_terms(scope, mask):
    """A causal row's first element is a value of its own, its last one the mean of many."""
    case = {"scope": scope, "mask": mask, "batch": 2, "heads": 2, "sequence": 512}
    case |= {"dtype": "bfloat16", "direction": "forward_backward"}
    workload = softmax.component.workload(case, "cpu", 1)
    arm = workload.arm(softmax.component.implementations["torch_eager"])
    checks = workload.check(arm).checks
    assert all(check.error < check.tolerance / 2 for check in checks), checks
    right = arm.function
    faults = {"scaled": lambda *t: right(*t) * 1.5, "shifted": lambda *t: right(*t).roll(1, -1)}
    for name, fault in faults.items():
        arm.function = fault
        assert not workload.check(arm).passed, name


def test_sizes_are_the_units_and_have_a_floor():
    reference = torch.tensor([1.0, 1e-3, 0.0], dtype=torch.float64)
    result = torch.tensor([1.0, 1.1e-3, 0.0])
    sizes = torch.tensor([1.0, 1e-3, 0.0], dtype=torch.float64)
    assert parity.error(result, reference) == pytest.approx(1e-4 / (1e-3 + 3**-0.5), rel=1e-4)
    assert parity.error(result, reference, sizes) == pytest.approx(1e-4 / 2e-3, rel=1e-4)
    stray = torch.tensor([1.0, 1e-3, 1e-6])
    floor = torch.finfo(torch.float32).eps * 3**-0.5
    assert parity.error(stray, reference, sizes) == pytest.approx(1e-6 / floor, rel=1e-2)
