"""apexbench: what NVIDIA Apex buys on your GPU, measured against what PyTorch already ships."""

__version__ = "0.1.0"
