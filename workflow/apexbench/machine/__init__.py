"""What this machine is: GPUs, compilers, containers, versions, and which Apex it has."""
