"""config.yaml: read strictly, laid over a preset, checked, and expanded into cases."""

from apexbench.config.loader import load
from apexbench.config.settings import Config

__all__ = ["Config", "load"]
