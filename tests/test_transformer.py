"""Training on the CPU: that it learns, that recipes share what they must, that faults are found."""

import dataclasses
import itertools

import pytest

torch = pytest.importorskip("torch")

from apexbench.measuring.arms import Diverged, Unsupported  # noqa: E402
from apexbench.transformer import precision, progress, schedule  # noqa: E402
from apexbench.transformer.models import PRESETS  # noqa: E402
from apexbench.transformer.progress import thinned  # noqa: E402
from apexbench.transformer.workload import (  # noqa: E402
    REPLAY_TOLERANCE,
    component,
    tolerance,
)
from conftest import require_compiled_torch  # noqa: E402

MODEL = {
    **dataclasses.asdict(PRESETS["tiny"]),
    "name": "mini", "layers": 1, "d_model": 32, "heads": 2, "vocabulary": 64, "sequence": 32,
    "batch": 8, "ffn_width": 128,
}  # fmt: skip
CASE = {"model": MODEL, "recipes": ["cpu"], "loss_steps": 10, "corpus": None}


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def workload(seed=0, **change):
    return component.workload({**CASE, **change}, "cpu", seed)


def arm(work, label):
    return work.arm(component.implementations[label])


def steps(trained, count):
    for _ in range(count):
        trained.prepare(1)
        trained.call(0)
        trained.finish()


def test_learns_below_the_unigrams_towards_the_floor():
    work = workload(loss_steps=150)
    details = work.details(arm(work, "fp32+torch+fused"))
    floor, unigrams = work.corpus.entropy, work.corpus.unigram_entropy
    assert details["loss_floor"] == floor
    assert floor < details["held_out_loss"] < (floor + unigrams) / 2
    assert details["losses"][-1][0] == details["steps"] == 150
    assert details["tokens_per_step"] == 256


def test_recipes_share_weights_batches_and_their_order():
    work = workload()
    first, second = arm(work, "fp32+torch+default"), arm(work, "fp32+torch+fused")
    steps(first, 3)
    second.prepare(3)
    for index in range(3):
        second.call(index)
    second.finish()
    assert first.progress.losses == pytest.approx(second.progress.losses, rel=1e-5)
    other = arm(workload(seed=1), "fp32+torch+default")
    steps(other, 1)
    assert other.progress.losses[0] != first.progress.losses[0]


def test_held_out_batches_are_not_trained_on_and_never_move():
    work = workload()
    one, two = work.shared(0).batches, work.shared(1).batches
    assert torch.equal(one.held_out, two.held_out)
    assert not torch.equal(one.held_out[0], one.train(0))
    tokens, targets = one.train(0)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_batches_go_on_after_their_block():
    batches = workload().shared(0).batches
    last = batches.per_block
    assert not torch.equal(batches.train(last), batches.train(0))
    assert torch.equal(batches.train(0), workload().shared(0).batches.train(0))


def test_half_the_learning_rate_shows_in_the_held_out_loss():
    losses = []
    for rate in (1e-2, 5e-3):
        work = workload(loss_steps=60, model={**MODEL, "learning_rate": rate})
        losses.append(work.details(arm(work, "fp32+torch+fused"))["held_out_loss"])
    assert losses[1] > losses[0] + 0.02


@pytest.mark.parametrize("label", ["bf16+torch+fused", "fp16+torch+default", "fp16+torch+fused"])
def test_half_precision_stays_close_to_fp32(label):
    work = workload()
    reference, half = arm(work, "fp32+torch+default"), arm(work, label)
    if half.scaler is not None:
        half.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # so that no step is skipped
    steps(reference, 8)
    steps(half, 8)
    assert half.progress.losses == pytest.approx(reference.progress.losses, rel=0.01)
    assert half.progress.losses != reference.progress.losses


def test_parity_passes_and_sees_a_wrong_gradient():
    work = workload()
    for label in ("fp32+torch+default", "bf16+torch+fused", "fp16+torch+fused"):
        assert work.check(arm(work, label)).passed
    wrong = arm(work, "bf16+torch+fused")
    ffn = wrong.model.blocks[0].ffn
    ffn.out.register_forward_hook(lambda _module, _inputs, out: out * 1.5)
    result = work.check(wrong)
    assert not result.passed
    assert all(entry.error is not None for entry in result.checks)


def test_parity_is_at_the_first_weights_and_leaves_the_run_as_it_was():
    work = workload()
    checked, plain = arm(work, "fp32+torch+default"), arm(work, "fp32+torch+default")
    for trained in (checked, plain):
        steps(trained, 3)
    assert work.check(checked).passed
    assert all(parameter.grad is None for parameter in checked.model.parameters())
    steps(checked, 2)
    steps(plain, 2)
    assert checked.progress.losses == plain.progress.losses


class Replayed:
    """Stands for a CUDA graph on a machine without one; ``frozen`` keeps the captured rate."""

    pool_bytes = 0

    def __init__(self, trained, frozen):
        self.trained, self.frozen = trained, frozen

    def replay(self, batch, rate):
        return self.trained._step(batch, 3e-4 if self.frozen else rate)[0]


def test_replays_are_compared_with_the_steps_they_stand_for():
    trained = arm(workload(), "fp32+torch+fused")
    steps(trained, 2)
    trained._graph = Replayed(trained, frozen=False)
    assert trained.replay_error() == 0
    trained._graph = Replayed(trained, frozen=True)
    assert trained.replay_error() > REPLAY_TOLERANCE
    assert trained.progress.steps == 0


def test_tolerance_grows_with_depth_and_with_the_roundings():
    assert tolerance(PRESETS["gpt2-350M"], "bf16") > tolerance(PRESETS["gpt2-124M"], "bf16")
    assert tolerance(PRESETS["tiny"], "bf16") > 5 * tolerance(PRESETS["tiny"], "fp16")
    assert tolerance(PRESETS["gpt2-124M"], "fp32") < 2e-4


def test_nan_loss_is_diverged_with_its_step():
    work = workload()
    trained = arm(work, "fp32+torch+default")
    steps(trained, 2)
    with torch.no_grad():
        trained.model.norm.weight.fill_(float("nan"))
    with pytest.raises(Diverged, match="loss is nan at step 3, seed 0"):
        steps(trained, 1)


@pytest.mark.parametrize("optimizer", ["default", "fused"])
def test_a_scaler_that_skips_every_step_is_diverged_with_its_history(optimizer, monkeypatch):
    monkeypatch.setattr(progress, "SKIPPED_IN_A_ROW", 4)
    trained = arm(workload(), f"fp16+torch+{optimizer}")
    before = [parameter.detach().clone() for parameter in trained.model.parameters()]
    trained.model.embedding.weight.register_hook(lambda grad: grad * float("inf"))
    with pytest.raises(
        Diverged, match=r"skipped 4 steps in a row until step 4, seed 0.*32768 at step 1"
    ):
        steps(trained, 10)
    assert trained.progress.skipped_steps == 4
    after = trained.model.parameters()
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_skipped_steps_and_scale_are_counted():
    work = workload(loss_steps=3)
    trained = arm(work, "fp16+torch+fused")
    trained.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    details = work.details(trained)
    assert details["skipped_steps"] == 3
    assert details["scale"] == 2.0**37
    assert details["scale_history"] == [[1, 2.0**39], [2, 2.0**38], [3, 2.0**37]]


def test_held_out_loss_is_taken_at_loss_steps_even_if_timing_goes_on():
    work = workload(loss_steps=10)
    ahead, behind = arm(work, "fp32+torch+default"), arm(work, "fp32+torch+fused")
    steps(ahead, 14)
    first, second = work.details(ahead), work.details(behind)
    assert (first["steps"], second["steps"]) == (14, 10)
    assert first["held_out_step"] == second["held_out_step"] == 10
    assert first["held_out_loss"] == pytest.approx(second["held_out_loss"], rel=1e-4)


@pytest.mark.parametrize("calls", [3, 7, 10, 16])
def test_held_out_loss_is_of_that_step_whatever_a_window_holds(calls):
    work = workload(loss_steps=10)
    timed, untimed = arm(work, "fp32+torch+fused"), arm(work, "fp32+torch+fused")
    while timed.progress.steps < 10:
        timed.prepare(calls)
        for index in range(calls):
            timed.call(index)
        timed.finish()
    first, second = work.details(timed), work.details(untimed)
    assert first["held_out_step"] == second["held_out_step"] == 10
    assert first["held_out_loss"] == second["held_out_loss"]
    assert first["losses"][:10] == second["losses"][:10]


@pytest.mark.parametrize("label", ["fp32+torch+default", "fp32+torch+fused", "fp16+torch+fused"])
def test_each_seed_of_the_loss_runs_starts_afresh(label):
    work = workload(loss_steps=4, seeds=2)
    details = work.details(arm(work, label))
    (first, one), (second, two) = details["held_out_losses"]
    assert one == details["held_out_loss"] != two
    assert details["steps"] == 4
    alone = workload(seed=second, loss_steps=4)
    assert alone.details(arm(alone, label))["held_out_loss"] == two
    assert first == 0


def test_tf32_is_set_both_ways_before_every_window():
    work = workload()
    plain = arm(work, "fp32+torch+default")
    precision.set_tf32(True)
    plain.prepare(1)
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32
    plain.recipe = dataclasses.replace(plain.recipe, precision="tf32")
    plain.prepare(1)
    assert torch.backends.cuda.matmul.allow_tf32
    precision.set_tf32(False)


def test_learning_rate_changes_every_step():
    rates = [schedule.learning_rate(step, 1.0) for step in range(200)]
    assert all(a != b for a, b in itertools.pairwise(rates))
    assert max(rates) == rates[schedule.WARMUP_STEPS - 1] == 1.0


def test_what_a_cpu_cannot_do_says_why():
    tf32 = component.implementations["tf32+torch+default"]
    with pytest.raises(Unsupported, match="format of NVIDIA GPUs"):
        workload().arm(tf32)
    graph = component.implementations["bf16+torch+fused+cudagraph"]
    assert graph.missing("cpu") == (
        "needs an NVIDIA GPU",
        "run on a machine with an NVIDIA GPU and a CUDA build of torch",
    )
    assert component.implementations["fp16+apex+apex"].missing("cpu")[0] == "needs an NVIDIA GPU"
    with pytest.raises(Unsupported, match="CUDA graph cannot capture"):
        arm(workload(), "fp16+torch+fused+cudagraph")
    with pytest.raises(Unsupported, match="a CUDA graph can't capture"):
        arm(workload(), "bf16+torch+default+cudagraph")


def test_article_without_a_mask_claims_no_floor():
    work = workload(model={**MODEL, "causal": False, "positions": "none", "tied": False})
    assert work.details(arm(work, "fp32+torch+fused"))["loss_floor"] is None


def test_thinned_keeps_the_last_step():
    points = thinned([float(n) for n in range(1, 1001)])
    assert len(points) == 200
    assert points[-1] == [1000, 1000.0]
    assert all(step == loss for step, loss in points)
    assert thinned([]) == []


def test_case_names_its_recipes_and_its_text():
    names = component.names({**CASE, "recipes": ["tutorial", "bf16+torch+fused"]}, None)
    assert names == ["fp32+torch+default", "fp16+apex+apex", "bf16+torch+fused"]
    assert component.names(CASE, ["fp32+torch+fused"]) == ["fp32+torch+fused"]
    assert component.label({**CASE, "model": "tiny"}) == "tiny"
    assert component.label({**CASE, "model": "tiny", "corpus": "a/b.txt"}) == "tiny on b.txt"


@pytest.mark.slow
def test_compiled_training_follows_eager():
    require_compiled_torch()
    work = workload()
    eager, compiled = arm(work, "bf16+torch+fused"), arm(work, "bf16+torch+fused+compile")
    assert work.check(compiled).passed
    steps(eager, 5)
    steps(compiled, 5)
    assert compiled.progress.losses == pytest.approx(eager.progress.losses, rel=0.01)
