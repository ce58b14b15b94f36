"""Short names of implementations, for sentences and labels: ``torch AdamW(fused=True)``.

A record's own implementation name is the key that config.yaml takes; alone in a sentence it says
too little ("apex"), and its description says too much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from apexbench.records import STATUSES

if TYPE_CHECKING:
    from apexbench.report.cases import Arm, Case

_NORM = {
    "torch_eager": "torch {norm}",
    "torch_compiled": "compiled torch {norm}",
    "formula": "the hand-written {norm} formula",
    "apex": "Fused{norm}",
    "apex_memory_efficient": "Fused{norm}(memory_efficient=True)",
    "apex_mixed": "MixedFused{norm}",
    "apex_mixed_memory_efficient": "MixedFused{norm}(memory_efficient=True)",
    "apex_fast": "Fast{norm}",
    "liger": "Liger {norm}",
    "transformer_engine": "Transformer Engine {norm}",
}
_RULES = {
    f"torch_{key}{suffix}": text.format(rule=rule)
    for key, rule in (("sgd", "SGD"), ("adagrad", "Adagrad"))
    for suffix, text in (
        ("", "torch {rule} (default)"),
        ("_forloop", "torch {rule}(foreach=False)"),
        ("_foreach", "torch {rule}(foreach=True)"),
        ("_fused", "torch {rule}(fused=True)"),
        ("_compiled", "compiled torch {rule}"),
        ("_cudagraph", "torch {rule} in a CUDA graph"),
    )
}
NAMES: dict[str, dict[str, str]] = {
    "optimizer": {
        "torch_default": "torch AdamW (default)",
        "torch_forloop": "torch AdamW(foreach=False)",
        "torch_foreach": "torch AdamW(foreach=True)",
        "torch_fused": "torch AdamW(fused=True)",
        "torch_compiled": "compiled torch AdamW",
        "torch_cudagraph": "torch AdamW in a CUDA graph",
        "apex": "FusedAdam",
        "apex_capturable": "FusedAdam(capturable=True)",
        "apex_master_weights": "FusedAdam(master_weights=True)",
        "apex_cudagraph": "FusedAdam in a CUDA graph",
        **_RULES,
        "apex_sgd": "FusedSGD",
        "apex_adagrad": "FusedAdagrad",
        "apex_lamb": "FusedLAMB",
        "apex_novograd": "FusedNovoGrad",
    },
    "tutorial": {
        "torch_default": "torch as it comes",
        "torch_fused": "torch AdamW(fused=True)",
        "apex": "Apex as it comes",
    },
    "grad_clip": {
        "torch_default": "torch clip_grad_norm_",
        "torch_forloop": "torch clip_grad_norm_(foreach=False)",
        "torch_foreach": "torch clip_grad_norm_(foreach=True)",
        "torch_cudagraph": "torch clip_grad_norm_ in a CUDA graph",
        "apex": "Apex's clip_grad_norm_",
    },
    "dense": {
        "torch_eager": "torch linear and activation",
        "torch_compiled": "compiled torch linear and activation",
        "apex_fused_dense": "FusedDense",
        "apex_fused_dense_gelu_dense": "FusedDenseGeluDense",
        "apex_mlp": "Apex's MLP",
    },
    "cross_entropy": {
        "torch_eager": "torch cross_entropy",
        "torch_upcast": "torch cross_entropy on float32 logits",
        "torch_compiled": "compiled torch cross_entropy",
        "apex": "Apex's xentropy",
        "apex_upcast": "Apex's xentropy on float32 logits",
        "liger": "Liger cross entropy",
    },
    "softmax": {
        "torch_eager": "torch scale, mask and softmax",
        "torch_compiled": "compiled torch softmax",
        "torch_sdpa": "torch scaled_dot_product_attention",
        "apex": "Apex's fused softmax",
        "apex_generic": "Apex's generic fused softmax",
    },
    "rope": {
        "torch_eager": "torch rotary embedding",
        "torch_compiled": "compiled torch rotary embedding",
        "apex": "Apex's fused RoPE",
        "apex_cached": "Apex's fused RoPE with cached angles",
    },
    "layer_norm": {key: text.format(norm="LayerNorm") for key, text in _NORM.items()},
    "rms_norm": {key: text.format(norm="RMSNorm") for key, text in _NORM.items()},
    "amp": {
        "torch_fp32": "torch float32",
        "torch_tf32": "torch TF32",
        "torch_fp16_gradscaler": "torch.amp float16 + GradScaler",
        "torch_bf16": "torch.amp bfloat16",
        "apex_amp_o0": "apex.amp O0",
        "apex_amp_o1": "apex.amp O1",
        "apex_amp_o2": "apex.amp O2",
        "apex_amp_o3": "apex.amp O3",
    },
}
FLAGS = {
    "compile": "torch.compile",
    "autotune": "max-autotune",
    "cudagraph": "CUDA graph",
    "master": "master weights",
    "chunked": "chunked loss",
    "cudnn": "cuDNN attention",
    "flash": "FlashAttention",
    "ddp": "data parallel",
}

PREDICATES = {
    "failed": "failed",
    "diverged": "diverged",
    "out_of_memory": "ran out of memory",
    "parity_failed": "failed its parity check",
}


def predicate(status: str) -> str:
    """A status as what a sentence says of its subject: ``failed``, ``is unavailable``."""
    return PREDICATES.get(status, f"is {status.replace('_', ' ')}")


def readable(component: str, reason: str) -> str:
    """``torch_compiled is failed``, as a record puts it: ``compiled torch LayerNorm failed``."""
    known = NAMES.get(component, {})
    parts = []
    for part in reason.split("; "):
        arm, _, status = part.partition(" is ")
        told = status in STATUSES and " " not in arm
        parts.append(f"{known.get(arm, arm)} {predicate(status)}" if told else part)
    return "; ".join(parts)


def name(case: Case, arm: Arm) -> str:
    """The arm's short name, or the implementation's own where the table has none."""
    return NAMES.get(case.component, {}).get(arm.implementation, arm.implementation)


def label(case: Case, arm: Arm) -> str:
    """The short name beside a mark whose colour already says torch or Apex."""
    return name(case, arm).replace("torch ", "")


def says(case: Case, arm: Arm) -> str:
    """The arm in a sentence: its short name, a recipe's label, or a short description."""
    if "precision" in arm.details:
        return arm.implementation
    known = NAMES.get(case.component, {}).get(arm.implementation)
    text = known or arm.description.strip().rstrip(".")
    text = text if 0 < len(text) <= 80 else arm.implementation
    return text if len(text) <= 80 else text[:79] + "…"
