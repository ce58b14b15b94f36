"""What else decides: torch's parts answer on the CPU, and so do fakes that cannot do a thing."""

from __future__ import annotations

import pytest
import torch

from apexbench.components import probes
from apexbench.components.compatibility import component

torch.set_num_threads(1)


def asked(subject: probes.Subject) -> dict[str, dict[str, str]]:
    workload = component.workload({}, "cpu", 0)
    arm = probes._Once(subject.call("cpu"), subject)
    arm.call(0)
    details = workload.details(arm)
    assert details["part"] == subject.part
    return details["probes"]


@pytest.mark.slow
def test_torch_s_adamw_can_be_combined_with_everything_here() -> None:
    answers = asked(component.implementations["torch_adamw"].build({}))
    gpu = {"its kernels under torch.compile", "in a CUDA graph"}
    assert {name for name, entry in answers.items() if entry["answer"] == "n/a"} == gpu
    assert all(entry["answer"] == "yes" for name, entry in answers.items() if name not in gpu), (
        answers
    )


@pytest.mark.slow
def test_torch_s_norm_and_clipping_too() -> None:
    for name in ("torch_layer_norm", "torch_clip_grad_norm"):
        answers = asked(component.implementations[name].build({}))
        assert answers["CPU tensors"]["answer"] == "yes"
        assert answers["one graph under torch.compile"]["answer"] in ("yes", "no")
        assert ("DTensor parameters" in answers) is (name == "torch_clip_grad_norm")


class Stubborn(torch.optim.SGD):
    """As Apex's: no set_to_none, a state of its own, no DTensor, a break in every graph."""

    def zero_grad(self):
        pass

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if type(p.data) is not torch.Tensor:
                    raise RuntimeError("expected a plain tensor")
                state = self.state[p]
                state["seen"] = state.get("seen", 0) + 1
                p.sub_(p.grad, alpha=group["lr"] / state["seen"])
                torch._dynamo.graph_break()


@pytest.mark.slow
def test_what_cannot_be_done_is_answered_no_with_the_reason() -> None:
    subject = probes.Optimizer(
        "optimizer",
        lambda params: Stubborn(params, lr=0.1),
        lambda params: torch.optim.SGD(params, lr=0.1),
        "own",
    )
    answers = asked(subject)
    assert answers["zero_grad(set_to_none=True)"]["note"].startswith("TypeError")
    assert "plain tensor" in answers["DTensor parameters"]["note"]
    assert answers["one graph under torch.compile"]["note"].startswith("GraphBreaks: 0 graphs")
    for name in ("DTensor parameters", "one graph under torch.compile"):
        assert answers[name]["answer"] == "no"


def test_a_state_that_loads_and_goes_another_way_is_no() -> None:
    class Halved(torch.optim.Adam):
        def load_state_dict(self, state):
            super().load_state_dict(state)
            for entry in self.state.values():
                entry["exp_avg"].mul_(0.5)

    def question(build):
        subject = probes.Optimizer("optimizer", build, lambda p: torch.optim.Adam(p, lr=0.1), "own")
        return probes.tried(lambda: subject._exchange("cpu"))

    assert question(lambda p: torch.optim.Adam(p, lr=0.1))["answer"] == "yes"
    halved = question(lambda p: Halved(p, lr=0.1))
    assert halved["answer"] == "no"
    assert "the next step differs" in halved["note"]
    lamb = probes.Optimizer("optimizer", lambda p: Stubborn(p, lr=0.1), None, "own")
    assert lamb.questions("cpu")["state_dict of torch's"]["answer"] == "n/a"


def test_apex_s_parts_need_a_gpu_and_are_never_timed() -> None:
    for name, entry in component.implementations.items():
        if entry.package == "apex":
            assert entry.missing("cpu")[0] == "needs an NVIDIA GPU", name
    assert probes._Once(lambda: None).untimed
