"""What a measuring job is asked: a component, its cases, all that a record's key depends on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from apexbench import records
from apexbench.components.names import outside
from apexbench.errors import UserError

PACKAGE = Path(__file__).parents[1]
PARTS = ("layer_norm", "rms_norm", "optimizer")
"""Components whose implementations the Transformer is made of."""
SELFCHECK_PARTS = ("layer_norm", "adamw_parity")
SELFCHECK_FILES = ("component.py", "pairs.py", "faulty.py", "waits.py", "do_bench.py")
"""What the proofs measure with; which cases there are, and how they are judged, is not in a key."""


@dataclass(frozen=True)
class Task:
    """One record to be had: a case in one process, and the key that names its record."""

    case: dict[str, Any]
    process: int
    key: str


@dataclass(frozen=True)
class Request:
    """One job. ``grid`` is the component's settings; ``cases`` the list itself where given instead.

    ``processes`` are the repeats in fresh processes, by number. ``environment`` is the slice of the
    machine's fingerprint that the measurements depend on.
    """

    component: str
    device: str
    seed: int
    measuring: dict[str, Any]
    environment: dict[str, Any]
    grid: dict[str, Any] | None = None
    cases: list[dict[str, Any]] = field(default_factory=list)
    implementations: list[str] | None = None
    processes: tuple[int, ...] = (0,)
    gpu_model: str | None = None
    image: str | None = None

    @classmethod
    def parse(cls, text: str) -> Request:
        """A request from its JSON text; UserError if it is not one."""
        try:
            value = records.load_json(text)
            value["processes"] = tuple(value.get("processes", (0,)))
            return cls(**value)
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"the request of this measuring job is not valid ({error}): it is written by the "
                "Snakefile."
            ) from error

    def text(self) -> str:
        """The request as canonical JSON: a Snakemake param, and what ``parse`` reads."""
        return records.canonical(asdict(self))

    def gpu_names(self) -> list[str]:
        """The models that it was planned for, as the driver names them; none where unknown."""
        if self.gpu_model is not None:
            return [self.gpu_model]
        counted = str(self.environment.get("gpus") or "")  # "2x NVIDIA H200, 1x …"
        return [entry.partition("x ")[2] for entry in filter(None, counted.split(", "))]

    def expanded(self) -> list[dict[str, Any]]:
        """The cases, in order."""
        if self.grid is None:
            return list(self.cases)
        from apexbench.config import grids, schema

        axes = schema.axes(schema.component(self.component))
        return grids.expand(f"components.{self.component}", self.grid, axes)

    def tasks(self) -> list[Task]:
        """Every record to be had, process by process."""
        task = self.task_of()
        return [task(case, process) for process in self.processes for case in self.expanded()]

    def task_of(self) -> Callable[[dict[str, Any], int], Task]:
        """The function from a case and a process's number to their task."""
        source = records.source_digest(sources(self.component))
        shared = {
            "component": self.component,
            "environment": self.environment,
            "source": source,
            "seed": self.seed,
            "device": self.device,
            "implementations": self.implementations,
            "measuring": self.measuring,
            "image": self.image,
            "schema": records.SCHEMA_VERSION,
        }
        return lambda case, process: Task(
            case, process, records.digest({**shared, "case": case, "process": process})
        )


def sources(component: str) -> list[Path]:
    """The files that a component's measurements depend on; also the inputs of its rule."""
    jobs = [PACKAGE / "jobs" / name for name in ("case.py", "groups.py", "preparing.py")]
    measuring = [*sorted((PACKAGE / "measuring").glob("*.py")), *jobs]
    if component == "transformer":
        parts = {path for name in PARTS for path in own_sources(name)}
        own = sorted((PACKAGE / "transformer").glob("*.py")) + sorted(parts)
    elif component == "selfcheck":
        parts = {path for name in SELFCHECK_PARTS for path in own_sources(name)}
        own = [PACKAGE / "selfcheck" / name for name in SELFCHECK_FILES] + sorted(parts)
    else:
        own = own_sources(component) + outside(component)
    return measuring + [path for path in own if path.exists()]


def own_sources(component: str) -> list[Path]:
    """The component's file and the sibling modules that it imports, directly or not."""
    import ast

    folder = PACKAGE / "components"
    found: dict[Path, None] = {}
    queue = [folder / f"{component}.py"]
    while queue:
        path = queue.pop()
        if path in found or not path.exists():
            continue
        found[path] = None
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                "apexbench.components"
            ):
                names = [node.module.rsplit(".", 1)[-1], *(alias.name for alias in node.names)]  # type: ignore[union-attr]
                queue += [folder / f"{name}.py" for name in names if name != "components"]
    return sorted(found)
