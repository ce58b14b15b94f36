"""The proof that a compiled Apex works on this GPU: one real step and one real forward.

Importing a module does not launch a kernel. A build for another architecture imports cleanly and
fails only when it runs ("no kernel image is available").
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from typing import Any

from apexbench.machine import apex_source
from apexbench.machine.apex import ApexStatus

TIME_LIMIT_S = 120

# Adam's first step without weight decay moves every element by the learning rate; the layer norm of
# a row is compared with torch's own.
PROOFS = {
    "fused_adam_step": """
import torch
from apex.optimizers import FusedAdam
p = torch.nn.Parameter(torch.ones(4096, device="cuda"))
p.grad = torch.full_like(p, 0.5)
FusedAdam([p], lr=1e-3).step()
torch.cuda.synchronize()
torch.testing.assert_close(p.detach(), torch.full_like(p, 0.999), rtol=1e-6, atol=0)
""",
    "fused_layer_norm_forward": """
import torch
from apex.normalization import FusedLayerNorm
x = torch.randn(64, 1024, device="cuda")
y = FusedLayerNorm(1024).cuda()(x)
torch.cuda.synchronize()
torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (1024,)))
""",
}


def apex_proof(time_limit: float = TIME_LIMIT_S) -> dict[str, dict[str, Any]]:
    """Run each of ``PROOFS`` in a process of its own on the first visible GPU.

    Returns per proof ``{"ok": bool, "error": str | None}``; the error is the traceback's last line.
    """
    return {name: _run(program, time_limit) for name, program in PROOFS.items()}


def _run(program: str, time_limit: float) -> dict[str, Any]:
    command = [sys.executable, "-P", "-c", program]
    try:
        done = subprocess.run(
            command,
            # The Apex that is proven must be the one this process would import.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            timeout=time_limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"ok": False, "error": f"no answer within {time_limit:g} s"}
    if done.returncode == 0:
        return {"ok": True, "error": None}
    lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    # A CUDA error's last lines are advice on debugging; the error itself starts "….Error: ".
    named = [line for line in lines if "Error" in line.split(":", 1)[0] and line[0] != " "]
    fallback = lines[-1] if lines else f"the process ended with status {done.returncode}"
    return {"ok": False, "error": (named or [fallback])[-1]}


def after_proof(status: ApexStatus, proof: dict[str, dict[str, Any]]) -> ApexStatus:
    """``status`` corrected by a failed proof, which outranks what files and imports show."""
    failed = {name: result["error"] for name, result in proof.items() if not result["ok"]}
    if not failed:
        return status
    name, error = next(iter(failed.items()))
    state = "wrong_architecture" if "no kernel image" in str(error) else "broken"
    subject = f"Apex {status.commit[:7]}" if status.commit else "Apex (unknown commit)"
    return dataclasses.replace(
        status,
        state=state,
        sentence=f"{subject} imports but does not run on this GPU: {name}: {error}",
        remedy=apex_source.install_command(status.capability),
    )
