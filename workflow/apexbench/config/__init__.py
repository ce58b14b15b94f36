"""config.yaml: read strictly, laid over a preset, checked, and expanded into cases."""

from apexbench.config.loader import device_asked, load
from apexbench.config.settings import Config

__all__ = ["Config", "device_asked", "load"]
