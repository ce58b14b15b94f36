"""Mixed precision: one whole training step, forward, loss, backward, AdamW, in each precision.

Case: ``model`` (``mlp``, the tutorial's 256-256-256-10 with ReLU and cross entropy; or
``transformer_block``, a pre-norm causal block of width 256 with 4 heads on sequences of 128),
``batch``, and ``legacy``, a level of apex.amp or ``none``: apex.amp is of another Apex, in a folder
of its own, and keeps one level for a whole process, so that such a case has a process with that
Apex and that level, in which torch's precisions are measured beside it. Every implementation starts
from the same float32 weights and the same batches, uses torch's default AdamW with the same
settings, and is timed as step_time: the scaled ones read their inf check on the host. TF32 is set
explicitly before every window. See :mod:`apexbench.components.amp_workload` for the gate.

Each function returns the precision's :class:`Recipe`.
"""

from __future__ import annotations

from apexbench.components import requirements
from apexbench.components.amp_workload import AmpWorkload, Recipe, label
from apexbench.components.component import Case, Component

component = Component("amp", AmpWorkload, label)
LEGACY = (requirements.legacy_amp,)


@component.implementation(role="default")
def torch_fp32(case: Case) -> Recipe:
    """float32 throughout, TF32 off: what PyTorch does when nothing is asked for."""
    return Recipe("float32")


@component.implementation(role="eager", requires=(requirements.cuda,))
def torch_tf32(case: Case) -> Recipe:
    """float32 storage, matrix products in TF32."""
    return Recipe("tf32")


@component.implementation(role="eager")
def torch_fp16_gradscaler(case: Case) -> Recipe:
    """torch.amp: float16 autocast and GradScaler."""
    return Recipe("float16", grad_scaler=True)


@component.implementation(role="eager")
def torch_bf16(case: Case) -> Recipe:
    """torch.amp: bfloat16 autocast; its exponent is float32's, so that no scaling is needed."""
    return Recipe("bfloat16")


@component.implementation(package="apex", requires=LEGACY)
def apex_amp_o0(case: Case) -> Recipe:
    """apex.amp O0: float32, through apex.amp's machinery."""
    return Recipe("float32", opt_level="O0")


@component.implementation(package="apex", requires=LEGACY)
def apex_amp_o1(case: Case) -> Recipe:
    """apex.amp O1: torch's functions patched to cast to float16, dynamic loss scale."""
    return Recipe("float16", opt_level="O1")


@component.implementation(package="apex", requires=LEGACY)
def apex_amp_o2(case: Case) -> Recipe:
    """apex.amp O2: float16 model, float32 master weights and batch norms, dynamic loss scale."""
    return Recipe("float16", opt_level="O2")


@component.implementation(package="apex", requires=LEGACY)
def apex_amp_o3(case: Case) -> Recipe:
    """apex.amp O3: float16 throughout, no loss scaling."""
    return Recipe("float16", opt_level="O3")
