"""What a window would miss, on a real GPU: work on a stream that a call did or did not join."""

import pytest
import torch

from apexbench.measuring import evidence
from apexbench.measuring.arms import Arm

pytestmark = [
    pytest.mark.needs_gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
CYCLES = 2_000_000


class Aside(Arm):
    """Work on a stream of its own beside long work on the current one."""

    def __init__(self, joins: bool, current: int):
        self.joins, self.current = joins, current
        self.aside = torch.cuda.Stream()

    def call(self, index: int) -> None:
        self.aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.aside):
            torch.cuda._sleep(CYCLES)
        torch.cuda._sleep(self.current)
        if self.joins:
            torch.cuda.current_stream().wait_stream(self.aside)


@pytest.mark.parametrize("current", [1000, 20_000_000])
def test_joined_work_is_inside_the_window(current: int) -> None:
    assert evidence.traced(Aside(True, current)).late_s <= evidence.LATE_S


def test_work_on_a_stream_that_is_not_joined_is_seen_at_its_length() -> None:
    late = evidence.traced(Aside(False, 1000)).late_s
    assert CYCLES / 2.5e9 < late < CYCLES / 0.3e9


def test_a_long_matrix_product_is_not_taken_for_missed_work() -> None:
    class Long(Arm):
        def __init__(self) -> None:
            self.matrix = torch.ones(8192, 8192, device="cuda")

        def call(self, index: int) -> None:
            self.matrix @ self.matrix

    arm = Long()
    assert max(evidence.traced(arm).late_s for _ in range(5)) <= evidence.LATE_S
