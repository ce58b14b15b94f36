"""A model's forward and backward in torch.compile, apart from every other arm's."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from apexbench.transformer.model import Transformer

AUTOTUNE: dict[str, Any] = {"max_autotune": True, "coordinate_descent_tuning": True}


def own_code(function: Callable[..., Any]) -> types.FunctionType:
    """A copy of ``function`` with a code object of its own.

    Dynamo keeps what it compiled by code object: with one for all arms, an arm could be given
    another's graph, and past eight of them it would run eager without a word.
    """
    assert isinstance(function, types.FunctionType)
    return types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


def compiled(model: Transformer, autotune: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """``model.forward`` compiled for static shapes; ``autotune`` times matrix kernels too."""
    forward = types.MethodType(own_code(Transformer.forward), model)
    return torch.compile(forward, dynamic=False, options=AUTOTUNE if autotune else None)
