"""Prove, inside the image build, that Apex was compiled, and for the architectures asked for.

Usage: python prove_apex.py COMMIT ARCHITECTURES OUTPUT, with ARCHITECTURES such as "9.0;10.0".
Exits with one sentence when a compiled module is missing or holds no code for an architecture.
It imports only torch, Apex's modules and the standard library, because the image has no apexbench.
"""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

# FusedAdam needs the first, FusedLayerNorm and FusedRMSNorm the second.
MODULES = ("amp_C", "fused_layer_norm_cuda")


def targets(architectures: str) -> dict[str, str]:
    """Map each entry of a TORCH_CUDA_ARCH_LIST to the name of the machine code it asks for.

    "9.0" asks for sm_90, "9.0a" for sm_90a; the PTX of "9.0+PTX" is not required here.
    """
    entries = [e for e in re.split(r"[;\s]+", architectures.strip()) if e]
    if not entries:
        sys.exit("TORCH_CUDA_ARCH_LIST is empty: give the GPU's compute capability, such as 9.0.")
    names = {}
    for entry in entries:
        version = re.fullmatch(r"(\d+)\.(\d+)([af]?)(?:\+PTX)?", entry)
        if version is None:
            sys.exit(f"TORCH_CUDA_ARCH_LIST holds {entry!r}, which is no compute capability.")
        names[entry] = "sm_" + "".join(version.groups())
    return names


def embedded(listing: str) -> list[str]:
    """The architectures named in what `cuobjdump --list-elf` prints, sorted."""
    return sorted(set(re.findall(r"\.(sm_\d+[af]?)\.cubin", listing)))


def main(commit: str, architectures: str, output: str) -> None:
    """Check every module and write the record of the build to `output` (JSON)."""
    wanted = targets(architectures)
    import torch  # first: it loads the libraries that Apex's modules link to

    modules = {}
    for name in MODULES:
        try:
            path = importlib.import_module(name).__file__
        except ImportError as fault:
            sys.exit(
                f"Apex {commit} was built without {name} ({fault}): build it with APEX_CPP_EXT=1 "
                "and APEX_CUDA_EXT=1, and with an nvcc of the CUDA version torch was built for."
            )
        listing = subprocess.run(
            ["cuobjdump", "--list-elf", str(path)], capture_output=True, text=True, check=True
        )
        modules[name] = embedded(listing.stdout)
        missing = [entry for entry, code in wanted.items() if code not in modules[name]]
        if missing:
            sys.exit(
                f"{name} holds code for {', '.join(modules[name]) or 'no GPU'}, but not for "
                f"{', '.join(missing)}: check TORCH_CUDA_ARCH_LIST."
            )
    nvcc = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True)
    gcc = subprocess.run(["gcc", "-dumpfullversion"], capture_output=True, text=True, check=True)
    record = {
        "commit": commit,
        "modules": modules,
        "architectures": list(wanted),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nvcc": nvcc.stdout.strip().splitlines()[-1],
        "gcc": gcc.stdout.strip(),
    }
    Path(output).write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record))


if __name__ == "__main__":
    main(*sys.argv[1:])
