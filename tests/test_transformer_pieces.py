"""What a recipe is made of: attention, loss, master weights, compiled code, optimizers, memory."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounter  # noqa: E402
from torch.nn.attention import SDPBackend  # noqa: E402

from apexbench.measuring import faults  # noqa: E402
from apexbench.measuring.arms import Unsupported  # noqa: E402
from apexbench.transformer import compiling, cross_entropy, pieces  # noqa: E402
from apexbench.transformer.master import ALIGNMENT, Master  # noqa: E402
from apexbench.transformer.model import Transformer, attention  # noqa: E402
from apexbench.transformer.model import cross_entropy as whole  # noqa: E402
from apexbench.transformer.models import PRESETS, model_config  # noqa: E402
from apexbench.transformer.recipe import Recipe, parse  # noqa: E402
from apexbench.transformer.trainer import sized  # noqa: E402
from apexbench.transformer.workload import component  # noqa: E402

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


def arm(label, **change):
    work = component.workload({**CASE, **change}, "cpu", 0)
    return work, work.arm(component.implementations[label])


def losses(label, steps=8, **change):
    _, trained = arm(label, **change)
    trained.train_to(steps)
    return trained.progress.losses


@pytest.mark.parametrize("chunk", [7, 16, 50, 64])
def test_the_loss_in_chunks_is_the_loss(chunk):
    x = torch.randn(50, 8, dtype=torch.float64, requires_grad=True)
    head = torch.nn.Linear(8, 40, bias=False, dtype=torch.float64)
    targets = torch.randint(40, (50,))
    found = cross_entropy.chunked_cross_entropy(x, head, targets, torch.float64, chunk)
    expected = whole(x, head, targets)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    own = torch.autograd.grad(3 * found, [x, head.weight])
    for one, two in zip(own, torch.autograd.grad(3 * expected, [x, head.weight]), strict=True):
        assert torch.allclose(one, two, rtol=1e-5, atol=1e-7)


def test_chunked_gradients_survive_in_float16():
    """1/N of a softmax vanishes there: the division must come after the sums over words."""
    x = torch.randn(16384, 16).requires_grad_()
    head = torch.nn.Linear(16, 1024, bias=False)
    targets = torch.randint(1024, (16384,))
    for scale in (1.0, 2.0**16):
        loss = cross_entropy.chunked_cross_entropy(x, head, targets, torch.float16, 1024)
        found, _ = torch.autograd.grad(loss * scale, [x, head.weight])
        expected, _ = torch.autograd.grad(whole(x, head, targets) * scale, [x, head.weight])
        error = float((found - expected).norm() / expected.norm())
        assert error < (5e-2 if scale == 1 else 2e-3)  # 1/N itself is near the smallest float16


def test_chunked_recipes_pass_parity_and_train_alike():
    for label in ("fp32+torch+default+chunked", "bf16+torch+fused+master+chunked"):
        work, trained = arm(label)
        assert work.check(trained).passed
    assert losses("fp32+torch+fused+chunked") == pytest.approx(losses("fp32+torch+fused"), rel=1e-5)


def test_master_weights_in_float32_are_the_optimizer_itself():
    config = model_config(MODEL)
    plain, flat = (pieces.build_model(config, Recipe(), "cpu") for _ in range(2))
    plain.initialise(0)
    flat.load_state_dict(plain.state_dict())
    options = {"lr": 1e-2, **pieces.HYPERPARAMETERS}
    one = torch.optim.AdamW(plain.parameters(), fused=True, **options)
    two = Master(flat, lambda p: torch.optim.AdamW(p, fused=True, **options), torch.float32)
    tokens = torch.randint(64, (2, 8, 32))
    for _ in range(5):
        for model, optimizer in ((plain, one), (flat, two)):
            model(tokens[0], tokens[1]).backward()
            optimizer.step()
            model.zero_grad()
    for left, right in zip(plain.parameters(), flat.parameters(), strict=True):
        assert torch.equal(left, right)
    assert flat.head.weight is flat.embedding.weight
    assert two.master.numel() % ALIGNMENT == 0


def test_master_weights_keep_what_bfloat16_cannot():
    _, trained = arm("bf16+torch+fused+master")
    before = trained.optimizer.master.detach().clone()
    assert not torch.equal(before, before.bfloat16().float())
    trained.train_to(3)
    parameters = list(trained.model.parameters())
    assert {parameter.dtype for parameter in parameters} == {torch.bfloat16}
    assert torch.equal(trained.optimizer.weights, trained.optimizer.master.detach().bfloat16())
    first = trained.progress.losses
    trained.restart(trained.shared)
    assert torch.equal(trained.optimizer.master.detach(), before)
    trained.train_to(3)
    assert trained.progress.losses == first


def test_rope_tables_stay_in_float32_beside_master_weights():
    rope = {**MODEL, "positions": "rope", "norm": "rms", "ffn": "swiglu", "bias": False}
    work, trained = arm("bf16+torch+fused+master", model=rope)
    assert trained.model.cosine.dtype == torch.float32
    assert work.check(trained).passed


@pytest.mark.parametrize("optimizer", ["forloop", "fused"])
def test_optimizers_are_the_same_adamw(optimizer):
    found = losses(f"fp32+torch+{optimizer}")
    assert found == pytest.approx(losses("fp32+torch+default"), rel=1e-5)


def test_attention_comes_from_the_kernel_that_is_asked_for():
    q, k, v = torch.randn(3, 2, 4, 16, 8).unbind()
    for causal in (True, False):
        found = pieces.attention_by(SDPBackend.MATH)(q, k, v, causal)
        assert torch.allclose(found, attention(q, k, v, causal), atol=1e-6)
    assert not torch.allclose(attention(q, k, v, True), attention(q, k, v, False))
    with pytest.raises(RuntimeError):  # never another kernel in its place
        pieces.attention_by(SDPBackend.CUDNN_ATTENTION)(q, k, v, True)


@pytest.mark.parametrize("flag", ["cudnn", "flash", "cudagraph"])
def test_what_needs_a_gpu_says_so_on_a_cpu(flag):
    entry = component.implementations[f"bf16+torch+fused+{flag}"]
    assert entry.missing("cpu")[0] == "needs an NVIDIA GPU"


def test_ddp_without_its_gpus_is_unsupported_with_the_number():
    work = component.workload({**CASE, "gpus": 3}, "cpu", 0)
    assert component.names({**CASE, "recipes": ["fp32+torch+fused"], "gpus": 3}, None) == [
        "fp32+torch+fused",
        "fp32+torch+fused+ddp",
    ]
    with pytest.raises(Unsupported, match="needs 3 GPUs"):
        work.arm(component.implementations["fp32+torch+fused+ddp"])


def test_micro_batches_add_up_to_the_whole_batch():
    whole_batch = losses("fp32+torch+fused", model={**MODEL, "batch": 24})
    in_parts = losses("fp32+torch+fused", gpus=3)
    assert in_parts == pytest.approx(whole_batch, rel=1e-5)
    work, trained = arm("fp16+torch+fused", gpus=3)
    assert work.check(trained).passed


def test_arms_never_share_compiled_code():
    one, two = (compiling.own_code(Transformer.forward) for _ in range(2))
    assert one.__code__ is not two.__code__
    counts = []
    for function in (one, two):
        counter = CompileCounter()
        config = model_config(MODEL)
        model = pieces.build_model(config, Recipe(), "cpu")
        model.initialise(0)
        tokens = torch.randint(64, (2, 8, 32))
        torch.compile(function, backend=counter)(model, tokens[0], tokens[1])
        counts.append(counter.frame_count)
    assert counts == [1, 1]


def test_each_way_of_a_recipe_is_one_graph():
    """Chunks, another attention kernel and RMSNorm are traced without a break."""
    config = model_config({**MODEL, "norm": "rms", "positions": "rope"})
    for recipe in (Recipe(), parse("bf16+torch+fused+chunked")):
        counter = CompileCounter()
        model = pieces.build_model(config, recipe, "cpu")
        model.initialise(0)
        for block in model.blocks:
            block.attention.attend = pieces.attention_by(SDPBackend.MATH)
        forward = torch.compile(
            compiling.own_code(Transformer.forward), backend=counter, fullgraph=True
        )
        tokens = torch.randint(64, (2, 8, 32))
        forward(model, tokens[0], tokens[1]).backward()
        assert counter.frame_count == 1


def test_out_of_memory_says_what_was_asked_for():
    config = model_config(MODEL)
    with pytest.raises(torch.OutOfMemoryError) as caught, sized(config):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")
    status, reason, _ = faults.explain(caught.value)
    assert status == "out_of_memory"
    assert reason == (
        "the device's memory ended when 2.00 GiB was asked for, training mini with 8 sequences of "
        "32 tokens"
    )


def test_out_of_memory_on_the_host_says_what_was_asked_for():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**58, dtype=torch.uint8)
    status, reason, _ = faults.explain(caught.value)
    assert (status, reason) == (
        "out_of_memory",
        f"the host's memory ended when {2**28:.2f} GiB was asked for",
    )


@pytest.mark.slow
def test_the_compiled_step_of_master_weights_follows_the_eager_one():
    entry = component.implementations["bf16+torch+compiled+master"]
    if (missing := entry.missing("cpu")) is not None:
        pytest.skip(missing[0])
    found = losses("bf16+torch+compiled+master", steps=5)
    assert found == pytest.approx(losses("bf16+torch+fused+master", steps=5), rel=2e-3)
