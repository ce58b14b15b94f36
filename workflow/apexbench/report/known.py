"""The free-form parts of a record, as far as the report reads them: refused by name at the door.

A record's ``provenance``, ``config``, ``state``, ``sampling`` and ``details`` may hold anything,
and each component adds its own. What the report takes from them has one type, which is checked here
once, so that no sentence, table or figure meets another. Measuring does not ask: what it leaves is
kept on the disk whatever the report thinks of it.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from apexbench.errors import UserError
from apexbench.records import Record, file_name

TEXT = {"type": ["string", "null"], "maxLength": 100_000}
NAME = {"type": "string", "maxLength": 1_000}
NUMBER = {"type": ["number", "null"], "minimum": -1e100, "maximum": 1e100}
AMOUNT = {"type": ["number", "null"], "minimum": 0, "maximum": 1e30}
COUNT = {"type": ["integer", "null"], "minimum": 0, "maximum": 2**53}
WHOLE = {"type": "integer", "minimum": 1, "maximum": 2**53}
LABEL = {"type": "integer", "minimum": -(2**53), "maximum": 2**53}


def _list(of: Any) -> dict[str, Any]:
    return {"type": ["array", "null"], "items": of}


def _pair(first: Any) -> dict[str, Any]:
    return {"type": "array", "items": [first, NUMBER], "minItems": 2, "maxItems": 2}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": ["object", "null"], "properties": properties}


_PLAIN = {"type": ["string", "number", "boolean", "null"]}
_TEXTS = (
    *("device_name", "gpu_uuid", "node", "torch", "cuda", "triton", "python", "driver"),
    *("apexbench", "runtime", "preset", "slurm_partition"),
)
PROVENANCE = {
    **dict.fromkeys(("run", "machine", "device", "started", "finished"), NAME),
    **dict.fromkeys(_TEXTS, TEXT),
    **dict.fromkeys(("seed", "cudnn", "image", "source", "config_hash", "slurm_job"), _PLAIN),
    "apex": _object(
        state=TEXT,
        commit=TEXT,
        sentence=TEXT,
        remedy=TEXT,
        modules={"type": ["array", "object", "null"], "items": NAME},
    ),
}
CONFIG = {
    "width": WHOLE,
    "rows": WHOLE,
    "dtype": NAME,
    "direction": NAME,
    "part": TEXT,
    "model": {"type": ["string", "object"]},
}
DETAILS = {
    **dict.fromkeys(("precision", "optimizer"), TEXT),
    "norm": {"type": ["string", "number", "null"]},  # a recipe's, or the length that was clipped
    **dict.fromkeys(("no_device_time", "no_step_time"), TEXT),
    **dict.fromkeys(("parameters", "tokens_per_step", "bytes", "flops", "tutorial_ns"), AMOUNT),
    **dict.fromkeys(("flops_per_token", "flops_per_token_palm"), AMOUNT),
    **dict.fromkeys(("held_out_loss", "loss", "loss_floor"), NUMBER),
    **dict.fromkeys(("skipped_steps", "graph_pool_bytes"), COUNT),
    "gpus": WHOLE,
    "losses": _list(_pair({"type": "number", "minimum": 0, "maximum": 1e15})),
    "held_out_losses": _list(_pair(LABEL)),
    "probes": {
        "type": ["object", "null"],
        "additionalProperties": _object(answer=TEXT, note=TEXT),
    },
}
_BLOCKS = _object(block_of_round=_list(LABEL), stop=TEXT)
SCHEMA = _object(
    provenance=_object(**PROVENANCE),
    config=_object(**CONFIG),
    state={
        "type": "array",
        "items": _object(
            hardware_throttle=_list(NAME),
            software_throttle=_list(NAME),
            foreign_processes=_list({}),
        ),
    },
    sampling=_object(device_time=_BLOCKS, step_time=_BLOCKS, block_of_round=_list(WHOLE)),
    cells={"type": "array", "items": _object(**DETAILS)},
)


@functools.cache
def _validator() -> Any:
    import fastjsonschema

    return fastjsonschema.compile(SCHEMA)


def check(record: Record, where: str) -> None:
    """Raise UserError, naming the record's file, where it holds another type than is read."""
    import fastjsonschema

    try:
        _validator()(
            {
                "provenance": record.provenance,
                "config": record.config,
                "state": record.state,
                "sampling": record.sampling,
                "cells": [cell.details for cell in record.cells],
            }
        )
    except fastjsonschema.JsonSchemaValueException as error:
        fault = re.sub(r"^data\.", "", error.message)
        fault = re.sub(r"^cells\[(\d+)\]", r"cells[\1].details", fault)
        raise UserError(
            f"{where}/{file_name(record.case, record.key)} cannot be reported ({fault}): delete "
            "that file and run the same command again; no other record is touched."
        ) from error
