"""Sizes, parameter counts and FLOPs of the models, and the recipes' names: nothing here trains."""

import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from apexbench.errors import UserError
from apexbench.transformer import recipe
from apexbench.transformer.models import LADDER, PRESETS, model_config
from apexbench.transformer.recipe import SETS, Recipe, every_recipe, parse, recipes_for


def test_published_gpt2_sizes():
    assert model_config("gpt2-124M").parameters(padded=False) == 124_439_808
    assert model_config("gpt2-350M").parameters(padded=False) == 354_823_168
    assert model_config("gpt2-124M").padded_vocabulary == 50304


@pytest.mark.parametrize("name", PRESETS)
def test_parameter_formula_is_the_modules_count(name):
    torch = pytest.importorskip("torch")
    from apexbench.transformer.model import Transformer
    from apexbench.transformer.pieces import norm_factory

    config = PRESETS[name]
    with torch.device("meta"):
        model = Transformer(config, norm_factory(config, "torch", "float32"))
    assert sum(parameter.numel() for parameter in model.parameters()) == config.parameters()
    linear = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear)]
    assert sum(weight.numel() for weight in linear) == config.matmul_parameters


@pytest.mark.parametrize("causal", [True, False])
def test_flops_against_counted_matmuls(causal):
    torch = pytest.importorskip("torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from apexbench.transformer.model import Transformer
    from apexbench.transformer.pieces import norm_factory

    config = model_config({**asdict(PRESETS["tiny"]), "causal": causal})
    with torch.device("meta"):
        model = Transformer(config, norm_factory(config, "torch", "float32"))
        tokens = torch.zeros(config.batch, config.sequence, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(tokens, tokens).backward()
    counted = counter.get_total_flops() / config.tokens_per_step
    masked_half = 6 * config.layers * config.d_model * config.sequence
    assert counted == config.flops_per_token_palm
    assert config.flops_per_token == counted - (masked_half if causal else 0)


def test_ladder_spans_5m_to_1_3b_at_fixed_tokens():
    sizes = [PRESETS[name].parameters() for name in LADDER]
    assert len(sizes) >= 5
    assert sizes == sorted(sizes)
    assert sizes[0] < 6e6
    assert sizes[-1] > 1.3e9
    assert len({PRESETS[name].tokens_per_step for name in LADDER}) == 1


OWN = {
    "name": "own", "layers": 2, "d_model": 64, "heads": 4,
    "vocabulary": 300, "sequence": 32, "batch": 2,
}  # fmt: skip


def test_swiglu_width_keeps_the_parameters_of_gelu():
    gelu, gated = (model_config({**OWN, "d_model": 768, "ffn": f}) for f in ("gelu", "swiglu"))
    assert gated.ffn_width == 2048
    assert gelu.matmul_parameters == gated.matmul_parameters


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"layers": 0}, "model.layers is 0"),
        ({"d_model": -1}, "model.d_model is -1"),
        ({"heads": 5}, "does not divide"),
        ({"heads": True}, "model.heads is True"),
        ({"norm": "layr"}, "did you mean 'layer'"),
        ({"causl": True}, "did you mean 'causal'"),
        ({"heads": 64, "positions": "rope"}, "odd width"),
        ({"learning_rate": 2}, "between 0 and 1"),
    ],
)
def test_bad_sizes_are_one_sentence(change, expected):
    with pytest.raises(UserError, match=expected):
        model_config({**OWN, **change})


def test_unknown_model_names_the_nearest():
    with pytest.raises(UserError, match="did you mean 'gpt2-124M'"):
        model_config("gpt2-124m")


def test_labels_round_trip():
    for entry in every_recipe():
        assert parse(entry.label) == entry
    assert parse("bf16+torch+fused+cudagraph+compile").label == "bf16+torch+fused+compile+cudagraph"


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("fp8+torch+fused", "precision 'fp8'; use one of fp32"),
        ("fp16+apexx+apex", "norm 'apexx'; did you mean 'apex'"),
        ("fp16+apex+fuse", "did you mean 'fused'"),
        ("fp16+apex+apex+compil", "did you mean 'compile'"),
        ("fp16+apex+apex+compile+compile", "twice"),
        ("tutorail", "did you mean 'tutorial'"),
    ],
)
def test_bad_labels_name_the_nearest(label, expected):
    with pytest.raises(UserError, match=expected):
        parse(label)


def test_attribution_holds_the_three_cubes():
    labels = set(SETS["attribution"])
    for base, other, default in (("fp32", "fp16", "default"), ("tf32", "fp16", "default"),
                                 ("fp32", "fp16", "fused")):  # fmt: skip
        for precision in (base, other):
            for norm in ("torch", "apex"):
                for optimizer in (default, "apex"):
                    assert f"{precision}+{norm}+{optimizer}" in labels


def test_sets_expand_once_each():
    chosen = recipes_for(["tutorial", "fp32+torch+default", "best"])
    assert [entry.label for entry in chosen[:2]] == ["fp32+torch+default", "fp16+apex+apex"]
    assert len(chosen) == len(set(chosen)) == 2 + len(SETS["best"])
    with pytest.raises(UserError, match="empty"):
        recipes_for([])


def test_roles():
    assert Recipe().role == "default"
    assert parse("bf16+torch+fused").role == "eager"
    assert parse("bf16+torch+fused+compile").role == "compiled"
    assert parse("fp32+torch+compiled").role == "compiled"
    assert parse("bf16+apex+fused+compile").role is None


def test_names_import_no_torch():
    code = (
        "import sys; import apexbench.transformer.recipe, apexbench.transformer.corpus; "
        "sys.exit('torch' in sys.modules)"
    )
    path = str(recipe.__file__).rsplit("/apexbench/", 1)[0]
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}).returncode == 0


def test_rope_rotates_by_position():
    torch = pytest.importorskip("torch")
    from apexbench.transformer.model import rotate, rotation_tables

    cosine, sine = rotation_tables(8, 4)
    x = torch.randn(1, 1, 1, 4, dtype=torch.float64).expand(1, 1, 8, 4)
    turned = rotate(x, cosine.double(), sine.double())[0, 0]
    assert torch.allclose(turned.norm(dim=-1), x[0, 0].norm(dim=-1))
    products = turned @ turned.T  # depends on the distance of two positions alone
    for distance in range(8):
        diagonal = products.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-5)


def test_causal_model_cannot_see_the_future():
    torch = pytest.importorskip("torch")
    from apexbench.transformer.model import Transformer
    from apexbench.transformer.pieces import norm_factory

    for causal in (True, False):
        config = replace(PRESETS["tiny"], causal=causal, norm="rms", ffn="swiglu",
                         ffn_width=0, positions="rope", bias=False)  # fmt: skip
        model = Transformer(config, norm_factory(config, "torch", "float32"))
        model.initialise(0)
        logits = []
        model.head.register_forward_hook(lambda _m, _i, out, kept=logits: kept.append(out))
        tokens = torch.randint(256, (1, 64))
        changed = tokens.clone()
        changed[0, -1] = (changed[0, -1] + 1) % 256
        model(tokens, tokens), model(changed, tokens)
        same = torch.equal(logits[0][0, :-1], logits[1][0, :-1])
        assert same == causal
