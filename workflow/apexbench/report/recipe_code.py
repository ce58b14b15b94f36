"""A recipe as the lines of Python that a user pastes into a training script. No torch here.

The lines take ``model``, whose call ``model(x, y)`` returns the loss, a batch ``x, y`` and a peak
learning rate ``lr``, and define ``step(x, y)``.
"""

from __future__ import annotations

from collections.abc import Mapping

from apexbench.transformer.recipe import Recipe

DTYPES = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}
NORM_CLASSES = {"layer": "FusedLayerNorm", "rms": "FusedRMSNorm"}
OPTIMIZERS: Mapping[str, str] = {
    "default": "torch.optim.AdamW({parameters}, lr={lr})",
    "forloop": "torch.optim.AdamW({parameters}, lr={lr}, foreach=False)",
    "fused": "torch.optim.AdamW({parameters}, lr={lr}, fused=True{capturable})",
    "compiled": "torch.optim.AdamW({parameters}, lr={lr}, foreach=True, capturable=True)",
    "apex": "FusedAdam({parameters}, lr={lr}, weight_decay=0.01{capturable})",
}


def lines(recipe: Recipe, device: str, norm: str = "layer") -> list[str]:
    """A recipe's code for ``cuda`` or ``cpu``; ``norm`` is the model's, ``layer`` or ``rms``."""
    return [*_imports(recipe, norm), "", *_setup(recipe, device), "", *_step(recipe, device),
            *_capture(recipe)]  # fmt: skip


def _imports(recipe: Recipe, norm: str) -> list[str]:
    result = ["import torch"]
    if recipe.cudnn or recipe.flash:
        result.append("from torch.nn.attention import SDPBackend, sdpa_kernel")
    if recipe.norm == "apex":
        torch_class = NORM_CLASSES[norm].removeprefix("Fused")
        result.append(
            f"from apex.normalization import {NORM_CLASSES[norm]}  # for each nn.{torch_class}"
        )
    if recipe.optimizer == "apex":
        result.append("from apex.optimizers import FusedAdam")
    if recipe.chunked:
        result.append(
            "from apexbench.transformer.cross_entropy import chunked_cross_entropy"
            "  # for head and F.cross_entropy, in the model"
        )
    return result


def _setup(recipe: Recipe, device: str) -> list[str]:
    result = []
    if recipe.precision in ("fp32", "tf32") and device == "cuda":
        allowed = recipe.precision == "tf32"
        result.append(f"torch.backends.cuda.matmul.allow_tf32 = {allowed}")
    if recipe.master:
        result += [
            "parameters = list(model.parameters())",
            "sizes = [p.numel() for p in parameters]",
            "master = torch.nn.Parameter(torch.cat([p.detach().float().flatten() for p in "
            "parameters]))",
            "weights = master.detach().bfloat16()",
            "for p, part in zip(parameters, weights.split(sizes)):",
            "    p.data = part.view_as(p)",
        ]
    on_device = recipe.cudagraph or recipe.optimizer == "compiled"
    if on_device:
        result.append(f'rate = torch.tensor(lr, device="{device}")  # a schedule sets it in place')
    optimizer = OPTIMIZERS[recipe.optimizer].format(
        parameters="[master]" if recipe.master else "model.parameters()",
        lr="rate" if on_device else "lr",
        capturable=", capturable=True" if recipe.cudagraph else "",
    )
    result.append(f"optimizer = {optimizer}")
    if recipe.precision == "fp16":
        result.append(f'scaler = torch.amp.GradScaler("{device}")')
    if recipe.compile:
        tuned = ', mode="max-autotune-no-cudagraphs"' if recipe.autotune else ""
        result.append(f"forward = torch.compile(model, dynamic=False{tuned})")
    if recipe.optimizer == "compiled":
        result.append("optimizer_step = torch.compile(optimizer.step, dynamic=False)")
    return result


def _step(recipe: Recipe, device: str) -> list[str]:
    contexts = []
    if recipe.precision in DTYPES and not recipe.master:
        contexts.append(f'torch.autocast("{device}", dtype={DTYPES[recipe.precision]})')
    if recipe.cudnn or recipe.flash:
        kernel = "CUDNN_ATTENTION" if recipe.cudnn else "FLASH_ATTENTION"
        contexts.append(f"sdpa_kernel(SDPBackend.{kernel})")
    call = f"loss = {'forward' if recipe.compile else 'model'}(x, y)"
    body = [f"with {', '.join(contexts)}:", f"    {call}"] if contexts else [call]
    update = "optimizer_step()" if recipe.optimizer == "compiled" else "optimizer.step()"
    if recipe.precision == "fp16":
        body += ["scaler.scale(loss).backward()", "scaler.step(optimizer)", "scaler.update()"]
    elif recipe.master:
        body += [
            "loss.backward()",
            "master.grad = torch.cat([p.grad.flatten() for p in parameters]).float()",
            update,
            "with torch.no_grad():",
            "    weights.copy_(master)",
        ]
    else:
        body += ["loss.backward()", update]
    body += ["model.zero_grad()", "return loss.detach()"]
    return ["def step(x, y):", *(f"    {line}" for line in body)]


def _capture(recipe: Recipe) -> list[str]:
    if not recipe.cudagraph:
        return []
    return [
        "",
        "stream = torch.cuda.Stream()  # x, y: tensors that every batch is copied into",
        "stream.wait_stream(torch.cuda.current_stream())",
        "with torch.cuda.stream(stream):",
        "    for _ in range(3):",
        "        step(x, y)",
        "torch.cuda.current_stream().wait_stream(stream)",
        "graph = torch.cuda.CUDAGraph()",
        "with torch.cuda.graph(graph):",
        "    loss = step(x, y)",
        "# a step: x.copy_(…), y.copy_(…), rate.fill_(…), graph.replay()",
    ]
