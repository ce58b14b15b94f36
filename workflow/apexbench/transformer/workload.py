"""The component ``transformer``: a case is a model, its implementations are recipes.

Config of a case: ``model`` (a preset's name or a mapping), ``recipes`` (labels or names of sets),
``loss_steps`` (training steps before the held-out loss; 0 for none), ``seeds`` (how many runs of
``loss_steps``; the first is the timed one, so that its steps are not trained twice), ``corpus``
(null or a path), ``tokenizer`` of a text, and ``gpus``, those of each of ``nodes``. With N GPUs in
all a step is of N of the model's batches: each recipe takes them in turn on one GPU, and its
``+ddp`` form all at once, so that the ratio of their times over N is the efficiency. ``group``
numbers the records among which the recipes of a large model are divided.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from apexbench.components import requirements
from apexbench.components.component import Case, Component, Implementation
from apexbench.measuring.arms import Arm, Unsupported, Workload
from apexbench.records import Check, Parity, Work
from apexbench.transformer import distributed, pieces, precision, recipe
from apexbench.transformer.batches import Batches
from apexbench.transformer.capture import GraphPool
from apexbench.transformer.corpus import BYTE_TOKENS, corpus_for
from apexbench.transformer.model import Transformer
from apexbench.transformer.models import ModelConfig, model_config
from apexbench.transformer.progress import thinned
from apexbench.transformer.recipe import Recipe
from apexbench.transformer.trainer import Shared, TrainingArm

SEED_STRIDE = 1000
REPLAY_TOLERANCE = 1e-3
PARITY_FORMULA = (
    "|loss - ref| / ref and ‖gradient - ref‖ / ‖ref‖ of the first batch, against float64: "
    "at most 2 sqrt(2 L + 2) eps(precision) + 8 sqrt(tokens) eps(float32); "
    "a CUDA graph's replays against the same steps without it: 1e-3 of the loss"
)


class TransformerWorkload(Workload):
    """One model: all recipes share the first weights, the batches and their order."""

    quantities: ClassVar[tuple[str, ...]] = ("step_time",)
    cold_cache = False

    def __init__(self, case: Case, device: str, seed: int):
        model = model_config(case["model"])
        self.gpus = distributed.ranks(case)
        self.config: ModelConfig = dataclasses.replace(model, batch=self.gpus * model.batch)
        self.loss_steps = int(case.get("loss_steps") or 0)
        self.seeds = [seed + SEED_STRIDE * run for run in range(int(case.get("seeds") or 1))]
        self.device = device
        self.corpus = corpus_for(
            case.get("corpus"), self.config, case.get("tokenizer") or BYTE_TOKENS
        )
        self.world = distributed.world(device, self.gpus)
        if self.world is not None:
            self.world.tell("case", dict(case), seed)
        self._shared: dict[int, Shared] = {}
        self._graph_pool = GraphPool() if device == "cuda" else None
        self.alive: Callable[[], None] = lambda: None
        self.work = Work(
            None,
            self.config.flops_per_token * self.config.tokens_per_step,
            "6·N_matmul + " + ("6" if self.config.causal else "12") + "·L·d·T FLOPs a token",
            reason="each recipe has the matmul ceiling of its own precision",
        )

    def arm(self, implementation: Implementation) -> TrainingArm:
        chosen: Recipe = implementation.build(self.config)
        shared = self.shared(self.seeds[0])
        if not chosen.ddp:
            return TrainingArm(chosen, shared)
        if self.world is None:
            raise Unsupported(
                f"needs {self.gpus} GPUs, which this run has not",
                "run on a machine with that many, or set gpus lower",
            )
        return distributed.DistributedArm(chosen, shared, self.world)

    def shared(self, seed: int) -> Shared:
        """First weights and batches of ``seed``, the same for every recipe."""
        if seed not in self._shared:
            model = self._plain()
            model.initialise(seed)
            weights = {name: value.cpu() for name, value in model.state_dict().items()}
            batches = Batches(self.corpus, self.config, self.device, seed)
            self._shared[seed] = Shared(
                self.config,
                weights,
                batches,
                self.device,
                self.loss_steps,
                micro_batches=self.gpus,
                graph_pool=self._graph_pool,
            )
        return self._shared[seed]

    def check(self, arm: Arm) -> Parity:
        """Loss and whole gradient of the first batch at the first weights, against float64."""
        assert isinstance(arm, TrainingArm)
        loss, gradients = arm.gradients(arm.shared.batches.train(0))
        expected, references = self._reference
        difference = total = 0.0
        for gradient, reference in zip(gradients, references, strict=True):
            wide = reference.to(self.device, torch.float64)
            difference += float((gradient.double() - wide).square().sum())
            total += float(wide.square().sum())
        finite = difference < float("inf")
        limit = tolerance(self.config, arm.recipe.precision)
        checks = [
            Check("loss", abs(loss - expected) / expected if loss == loss else None, limit),
            Check("gradient", (difference / total) ** 0.5 if finite else None, limit),
        ]
        if arm.recipe.cudagraph:
            checks.append(Check("loss of 10 replays", arm.replay_error(), REPLAY_TOLERANCE))
        return Parity(all(check.passed for check in checks), PARITY_FORMULA, checks)

    def _plain(self) -> Transformer:
        return pieces.build_model(self.config, Recipe(), self.device)

    @cached_property
    def _reference(self) -> tuple[float, list[Tensor]]:
        """Loss, and gradients as float32 on the host, computed in float64 a sequence at a time."""
        shared = self.shared(self.seeds[0])
        model = self._plain()
        model.load_state_dict(shared.weights)
        model.double()
        for block in model.blocks:  # recomputed in the backward: float64 attention is large
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        total = 0.0
        for row in shared.batches.train(0).unbind(dim=1):  # one sequence at a time
            loss = model(row[:1], row[1:]) / self.config.batch
            loss.backward()
            total += float(loss.detach())
        return total, [p.grad.float().cpu() for p in model.parameters() if p.grad is not None]

    def details(self, arm: Arm) -> dict[str, Any]:
        """The loss runs, where ``loss_steps`` are asked for, and the facts of the recipe."""
        assert isinstance(arm, TrainingArm)
        timed = arm.progress
        held_out = []
        for seed in self.seeds if self.loss_steps else []:
            if seed != timed.seed:
                arm.restart(self.shared(seed))
            arm.train_to(self.loss_steps, self.alive)
            held_out.append([seed, arm.progress.held_out_loss])
        config, chosen = self.config, arm.recipe
        return {
            "precision": chosen.precision,
            "norm": chosen.norm,
            "optimizer": chosen.optimizer,
            "compile": chosen.compile,
            "cudagraph": chosen.cudagraph,
            "flags": chosen.flags,
            "gpus": self.gpus if chosen.ddp else 1,
            "tokens_per_step": config.tokens_per_step,
            "parameters": config.parameters(),
            "matmul_parameters": config.matmul_parameters,
            "flops_per_token": config.flops_per_token,
            "flops_per_token_palm": config.flops_per_token_palm,
            "flops_per_step": config.flops_per_token * config.tokens_per_step,
            "ceiling": precision.CEILING[chosen.precision],
            "losses": thinned(timed.losses),
            "held_out_loss": timed.held_out_loss,
            "held_out_step": timed.held_out_step,
            "held_out_losses": held_out,
            "loss_floor": self.corpus.entropy if config.causal else None,
            "steps": timed.steps,
            "skipped_steps": timed.skipped_steps,
            "scale": timed.scales[-1][1] if timed.scales else None,
            "scale_history": [list(entry) for entry in timed.scales],
            "graph_pool_bytes": arm.graph_pool_bytes,
        }

    def close(self) -> None:
        self._shared.clear()
        self.__dict__.pop("_reference", None)


def tolerance(config: ModelConfig, name: str) -> float:
    """Largest relative error of loss and gradient: see ``PARITY_FORMULA``.

    Each of the 2·L + 2 residual additions, embedding and head rounds to the precision's eps with a
    random sign; a gradient sums over the step's tokens in float32.
    """
    rounds = 2 * math.sqrt(2 * config.layers + 2) * precision.EPSILON[name]
    return rounds + 8 * math.sqrt(config.tokens_per_step) * precision.EPSILON["fp32"]


class RecipeComponent(Component):
    """A component whose implementations are all recipes; a case names those it wants."""

    def names(self, case: Case, wanted: list[str] | None) -> list[str]:
        chosen = recipe.recipes_for(case["recipes"])
        if distributed.ranks(case) > 1:
            chosen = [form for entry in chosen for form in recipe.on_several_gpus(entry)]
        labels = dict.fromkeys(entry.label for entry in chosen)
        return [label for label in labels if wanted is None or label in wanted]


def label(case: Case) -> str:
    """The model's name, how many GPUs above one, and the text's name where there is one."""
    name = model_config(case["model"]).name
    if (gpus := distributed.ranks(case)) > 1:
        name += f" on {gpus} GPUs"
    if (nodes := int(case.get("nodes") or 1)) > 1:
        name += f" of {nodes} nodes"
    return f"{name} on {Path(case['corpus']).name}" if case.get("corpus") else name


def implementation(chosen: Recipe) -> Implementation:
    """A recipe as an implementation: it needs what its norm, its optimizer and its flags need."""
    norm = pieces.norm_implementation("layer", chosen.norm)
    optimizer = pieces.optimizer_implementation(chosen.optimizer, captured=False)
    assert optimizer is not None
    needs = [*norm.requires, *optimizer.requires]
    if chosen.compile and requirements.compiler not in needs:
        needs.append(requirements.compiler)
    if chosen.cudagraph or chosen.cudnn or chosen.flash:
        needs.append(requirements.cuda)
    return Implementation(
        name=chosen.label,
        package=chosen.package,
        role=chosen.role,
        requires=tuple(needs),
        kernel=norm.kernel or optimizer.kernel or ("triton_" if chosen.compile else None),
        description=chosen.description,
        build=lambda config: chosen,
        graphs=chosen.compile + (chosen.optimizer == "compiled"),
    )


component = RecipeComponent("transformer", TransformerWorkload, label)
component.implementations.update(
    {entry.label: implementation(entry) for entry in recipe.every_recipe()}
)
