"""Reads config.yaml and lays it between a preset and the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apexbench.config import duration, layers, presets, sentences, strict_yaml
from apexbench.config import schema as schemas
from apexbench.config.settings import Config
from apexbench.errors import UserError
from apexbench.transformer.recipe import recipes_for


def load(
    root: Path,
    overrides: Mapping[str, Any] | None = None,
    has_gpu: bool = False,
    implementations: Mapping[str, Sequence[str]] | None = None,
) -> Config:
    """The effective config of the repository at ``root``.

    ``overrides`` is Snakemake's mapping from ``--configfile`` and ``--config``, whose nested values
    may be strings. ``implementations`` gives the known names per component; None leaves the names
    in config.yaml unchecked. Raises UserError, one sentence, for anything that is not valid.
    """
    schema = schemas.root()
    user = _given(root, overrides, schema)
    device = user.get("device", "auto")
    if device == "auto" and user.get("cluster", "none") != "none":
        raise UserError(
            "device is 'auto', but the jobs run on other machines than this one: state device=cuda "
            "or device=cpu under `config:` in the profile, or in config.yaml."
        )
    if device == "auto":
        device = "cuda" if has_gpu else "cpu"
    preset = presets.choose(user.get("preset", "auto"), device)
    settings = layers.overlay(schemas.defaults(schema), presets.read(preset), schema)
    settings = layers.overlay(settings, user, schema)
    config = _config({**settings, "preset": preset, "device": device})
    _check_implementations(config, implementations)
    narrowed = {name: _narrowed(entry) for name, entry in config.components.items()}
    config = dataclasses.replace(config, components=narrowed)
    for component in config.components:
        config.cases(component)
    for path, holder in _holders(dict(config.transformer), "recipes"):
        recipes_for(holder["recipes"], f"{path}.recipes")
    return dataclasses.replace(config, warnings=_warnings(config))


def device_asked(root: Path, overrides: Mapping[str, Any]) -> str:
    """What the configuration says of the device: auto, cpu or cuda; raises UserError as load."""
    return str(_given(root, overrides, schemas.root()).get("device", "auto"))


def _given(
    root: Path, overrides: Mapping[str, Any] | None, schema: schemas.Schema
) -> dict[str, Any]:
    """What the user says: config.yaml under ``overrides``, without defaults or a preset."""
    user = strict_yaml.read(root / "config.yaml", "config.yaml")
    user = {} if user is None else layers.settle(user, schema, strings=False)
    if not isinstance(user, dict):
        raise UserError(
            f"config.yaml holds {sentences.show(user)} but must hold keys and values: "
            "write, for instance, preset: auto."
        )
    top = layers.settle(layers.plain(overrides or {}), schema, strings=True)
    user = layers.overlay(user, top, schema)
    schemas.validate(user)
    return user


def _config(settings: dict[str, Any]) -> Config:
    components = {}
    for name in schemas.components():
        entry = dict(settings["components"].get(name, {}))
        if name in schemas.plugins() and "cases" not in entry:
            continue  # a plug-in that nobody asked for
        if entry.pop("enabled", True):
            components[name] = entry
    transformer = {"enabled": True, **settings["transformer"]}
    names = schemas.root()["$defs"]["transformer_models"]["items"]["else"]["enum"]
    seen: dict[str, Any] = {}
    for path, holder in _holders(transformer):
        holder["models"] = [
            _model(f"{path}.models[{index}]", model, names, seen)
            for index, model in enumerate(holder["models"])
        ]
    return Config(**{**settings, "components": components, "transformer": transformer})


def _holders(transformer: dict[str, Any], key: str = "models") -> list[tuple[str, dict[str, Any]]]:
    """The transformer's settings and its further grids, those that list ``key``."""
    further = [dict(part) for part in transformer.get("also", ())]
    if further:
        transformer["also"] = further
    entries = [("transformer", transformer)]
    entries += [(f"transformer.also[{index}]", part) for index, part in enumerate(further)]
    return [(path, holder) for path, holder in entries if key in holder]


def _model(path: str, model: Any, names: Sequence[str], seen: dict[str, Any]) -> Any:
    """A model of the user's own with its defaults, after the checks that no schema can make."""
    if isinstance(model, str):
        return model
    model = {**schemas.defaults(schemas.root()["$defs"]["transformer_model"]), **model}
    if model["d_model"] % model["heads"]:
        raise UserError(
            f"{path}.d_model is {model['d_model']} but must be a multiple of heads, "
            f"which is {model['heads']}."
        )
    if model["name"] in names or seen.setdefault(model["name"], model) != model:
        raise UserError(
            f"{path}.name is '{model['name']}', which is another model's name: choose a new one."
        )
    return model


def _check_implementations(config: Config, known: Mapping[str, Sequence[str]] | None) -> None:
    for component, settings in config.components.items():
        path = f"components.{component}"
        holders = [(path, settings)]
        for index, part in enumerate(settings.get("also", ())):
            holders.append((f"{path}.also[{index}]", part))
            if list(part) == ["implementations"]:
                axes = ", ".join(schemas.axes(schemas.component(component)))
                raise UserError(
                    f"{path}.also[{index}] has implementations alone, so its cases are the main "
                    f"grid's: add one of {axes}, or write {path}.implementations."
                )
        if known is None or component not in known:
            continue
        for where, holder in holders:
            for index, name in enumerate(holder.get("implementations", ())):
                if name not in known[component]:
                    noun = f"implementation of {component}"
                    place = f"{where}.implementations[{index}]"
                    raise sentences.not_a(place, name, noun, known[component])


def _narrowed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A component's settings without the further grids that hold none of its implementations."""
    wanted = settings.get("implementations")
    result = dict(settings)
    if wanted is not None and "also" in settings:
        result["also"] = [
            part
            for part in settings["also"]
            if not set(part.get("implementations", wanted)).isdisjoint(wanted)
        ]
    return result


def _warnings(config: Config) -> tuple[str, ...]:
    if config.device == "cpu" and config.preset in ("full", "reference"):
        estimate = duration.in_words(duration.cpu_seconds(config))
        return (
            f"preset {config.preset} takes {estimate} on a CPU and measures no Apex there: "
            "preset: quick ends in minutes.",
        )
    return ()
