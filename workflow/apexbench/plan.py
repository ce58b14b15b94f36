"""What the Snakefile needs to know: which jobs there are, what each depends on. No torch here."""

from __future__ import annotations

import functools
import math
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apexbench import config as configs
from apexbench import dependencies, disk, inherited, records, stale
from apexbench.cluster import fingerprint, steps
from apexbench.components.names import implementation_names
from apexbench.config import Config, given
from apexbench.errors import UserError
from apexbench.image import planned
from apexbench.jobs.request import Request, sources
from apexbench.machine.environment import device_choice, environment
from apexbench.runtimes.decide import NATIVE, Decision
from apexbench.transformer.recipe import divided

CASE = ("model", "recipes", "gpus", "nodes")
"""What of a model's grid stands in its case as it is."""


@dataclass(frozen=True)
class Plan:
    """The run as configured on this machine."""

    config: Config
    root: Path
    why_device: str
    runtime: Decision = NATIVE

    @functools.cached_property
    def image(self) -> planned.ImagePlan:
        """The image that measurements run in, if they do."""
        return planned.ImagePlan(self.config, self.runtime, self.root)

    @functools.cached_property
    def environment(self) -> dict[str, str | None]:
        """The machine's fingerprint, and on a CPU the threads that torch gets."""
        found = environment(self.config.device)
        if self.config.cluster != "none":
            found = {"threads": None, **fingerprint.planned(found, self.config.device)}
        if self.runtime.contained:
            found = {
                key: value if key in dependencies.OUTSIDE else None for key, value in found.items()
            }
        if self.config.cluster != "none":
            return found
        on_cpu = self.config.device == "cpu"
        return {**found, "threads": os.environ["APEXBENCH_THREADS"] if on_cpu else None}

    @property
    def components(self) -> list[str]:
        """The components to measure."""
        return list(self.config.components)

    @functools.cached_property
    def models(self) -> dict[str, dict[str, Any]]:
        """The Transformer's cases by the model's name, ``-x<N>`` behind it on N GPUs.

        On M nodes with N GPUs each it is ``-<M>x<N>``.
        """
        found = {}
        for case in self.config.cases("transformer"):
            name = case["model"] if isinstance(case["model"], str) else case["model"]["name"]
            nodes = case.get("nodes", "")
            job = f"{name}-{nodes}x{case['gpus']}" if "gpus" in case else name
            if job in found:
                raise UserError(
                    f"transformer: two trainings would both be called '{job}': rename a model."
                )
            found[job] = case
        return found

    def gpus(self, model: str) -> int:
        """How many GPUs a model's training job needs, on all its nodes."""
        return int(self.models[model].get("gpus") or 1) * self.nodes(model)

    def nodes(self, model: str) -> int:
        """How many nodes a model's training job needs."""
        return int(self.models[model].get("nodes") or 1)

    def tasks(self, model: str) -> int | None:
        """The tasks of a Slurm job on several nodes, one a node; None leaves one node's as it is.

        The executor plugin then starts the job without srun, which the job does by itself: it takes
        that for an MPI program.
        """
        return self.nodes(model) if self.nodes(model) > 1 else None

    def check_nodes(self) -> None:
        """Raise UserError where a model is to be trained on several nodes and cannot be."""
        for model in self.models:
            steps.check(self.nodes(model), self.config.cluster, self.runtime.name)

    @property
    def indexes(self) -> list[str]:
        """The index.json of every measuring job."""
        processes = range(self.config.transformer["processes"])
        return [f"results/records/{name}/index.json" for name in self.components] + [
            f"results/records/transformer/{model}-p{process}/index.json"
            for model in self.models
            for process in processes
        ]

    def slice(self, component: str) -> dict[str, str | None]:
        """What of the fingerprint a component depends on."""
        keys = dependencies.of(component)
        return {key: self.environment[key] for key in sorted(keys) if self.environment[key]}

    def request(self, component: str) -> str:
        """The request of a component's job: a param, so that a change of it re-measures."""
        settings = dict(self.config.components[component])
        implementations = settings.pop("implementations", None)
        if "cases" in settings:
            return self._request(
                component, cases=settings["cases"], implementations=implementations
            )
        return self._request(component, grid=settings, implementations=implementations)

    def training_request(self, model: str, process: int) -> str:
        """The request of one model in one fresh process."""
        own = dict(self.models[model])
        settings = {**self.config.transformer, **own}
        case = {
            **{key: value for key, value in own.items() if key in CASE},
            "loss_steps": settings["loss_steps"],
            "seeds": math.ceil(settings["seeds"] / settings["processes"]),
            "corpus": settings["corpus"],
        }
        if settings["corpus"] is not None:
            case["tokenizer"] = settings["tokenizer"]
        measuring = {**self.config.measuring, "case_seconds": settings["case_seconds"]}
        cases = divided(case, settings["arms_at_once"])
        return self._request("transformer", measuring, cases=cases, processes=(process,))

    def check_corpus(self) -> None:
        """Read the user's text before any measuring; UserError says what is wrong with it."""
        settings = self.config.transformer
        if settings["corpus"] is not None:
            from apexbench.transformer.corpus import corpus_for
            from apexbench.transformer.models import model_config

            for case in self.models.values():
                corpus_for(settings["corpus"], model_config(case["model"]), settings["tokenizer"])

    def _request(
        self, component: str, measuring: Mapping[str, Any] | None = None, **values: Any
    ) -> str:
        measuring = dict(measuring or self.config.measuring)
        repeats = measuring.pop("processes")
        values.setdefault("processes", tuple(range(repeats)))
        return Request(
            component=component,
            device=self.config.device,
            seed=self.config.seed,
            measuring=measuring,
            environment={**self.slice(component), **self._corpus(component)},
            gpu_model=self.config.gpu_model,
            **values,
        ).text()

    def _corpus(self, component: str) -> dict[str, str]:
        """What the user's text is, by content, where it is trained on."""
        path = self.config.transformer["corpus"]
        if component != "transformer" or path is None:
            return {}
        from apexbench.transformer.corpus import fingerprint as of_text

        return {"corpus": of_text(Path(path))}

    def sources(self, component: str) -> list[str]:
        """Source files that a component's measurements depend on, relative where possible."""
        here = Path.cwd()
        return [
            str(path.relative_to(here) if path.is_relative_to(here) else path)
            for path in sources(component)
        ]

    def tree(self, folder: str, pattern: str) -> list[str]:
        """Files of the workflow that the report depends on, relative where possible."""
        here, top = Path.cwd(), self.root / "workflow" / folder
        return [
            str(path.relative_to(here) if path.is_relative_to(here) else path)
            for path in sorted(top.rglob(pattern))
            if path.is_file() and "__pycache__" not in path.parts
        ]

    def references(self) -> list[str]:
        """Machines whose versioned records' report is rebuilt too: all of them without a GPU."""
        if self.config.device == "cuda" or not self.config.report["reference"]:
            return []
        folder = Path("results/reference")
        return [path.parent.name for path in sorted(folder.glob("*/machine.json"))]

    def reference_files(self, machine: str) -> list[str]:
        """Every file of a machine's versioned records."""
        folder = Path("results/reference") / machine
        return [str(path) for path in sorted(folder.rglob("*.json"))]

    def selfcheck(self) -> list[str]:
        """The indexes that ``apexbench selfcheck`` has left so far: the report shows them."""
        found = Path("results/selfcheck/records").rglob("index.json")
        return sorted(str(path) for path in found)

    def training_command(self, model: str) -> str:
        """The shell words that measure a model, on as many nodes as it needs."""
        return self.command(measuring=True, nodes=self.nodes(model))

    def command(self, *, measuring: bool = False, nodes: int = 1) -> str:
        """The shell words that run apexbench here, or inside the runtime with the device locked."""
        words = [sys.executable, "-P", "-m", "apexbench"]
        if measuring:
            words += ["exec", "--runtime", self.runtime.name, "--device", self.config.device]
            words += ["--nodes", str(nodes)] if nodes > 1 else []
            if self.runtime.contained:
                words += ["--image-record", str(Path.cwd() / planned.RECORD)]
                words += ["--results", str(Path.cwd() / "results")]
                corpus = self.config.transformer["corpus"]
                words += ["--read", str(Path(corpus).resolve())] if corpus else []
            words += ["--"]
        return shlex.join(words)

    def build_command(self) -> str:
        """The shell words of the image's rule: supervised, so that it ends with the run."""
        return shlex.join(
            [
                *(sys.executable, "-P", "-m", "apexbench", "exec", "--runtime", "native"),
                *("--no-lock", "--", "image", "build"),
            ]
        )


def load(
    root: Path,
    overrides: Mapping[str, Any],
    in_job: bool = False,
    configfiles: Sequence[Path] = (),
) -> Plan:
    """The plan of the repository at ``root``; a UserError ends the program with its sentence.

    ``in_job`` says that this Snakemake runs one job of another one's, on a cluster's node.
    ``configfiles`` are those that ``overrides`` came from, read again, strictly. Sets
    what the jobs inherit: PYTHONPATH, the number of threads, the run's id.
    """
    inherited.forget_foreign_modules()
    try:
        disk.check_folder(Path.cwd())
        if not in_job:
            given.check_files(map(Path, configfiles))
            given.check_values(given.values(sys.argv[1:]))
        runtime = planned.decision(root, overrides)
        has_gpu = device_choice("auto", runtime.contained).device == "cuda"
        config = configs.load(root, overrides, has_gpu, implementation_names())
        if config.cluster == "none":
            asked = "cuda" if config.device == "cuda" else configs.device_asked(root, overrides)
            why = device_choice(asked, runtime.contained).why
            if config.gpu_model and asked == "auto":
                obstacle = why.removeprefix("Measuring on the CPU: ").rstrip(".")
                raise UserError(
                    f"gpu_model is '{config.gpu_model}', but no GPU can be used here ({obstacle}): "
                    "remove gpu_model, or set device: cpu."
                )
        else:
            model = config.gpu_model or "whichever GPU it gives"
            why = "its jobs go to Slurm" + (f", on {model}." if config.device == "cuda" else ".")
        plan = Plan(config, root, why, runtime)
        plan.check_nodes()
        plan.check_corpus()
        plan.image.check_recipe()
        if not in_job:
            stale.take_back(plan.indexes, Path("results"), sys.argv[1:])
        inherited.prepare(config, in_job)
    except UserError as error:
        sys.exit(f"apexbench: {error}")
    except KeyboardInterrupt:
        sys.exit("apexbench: interrupted before the first job began.")
    return plan


def effective(plan: Plan) -> str:
    """The effective config as JSON text, with the run's indexes, for results/config.json."""
    indexes = [str(Path(index).relative_to("results")) for index in plan.indexes]
    return records.canonical(
        {**plan.config.to_dict(), "hash": plan.config.hash(), "indexes": indexes}
    )
