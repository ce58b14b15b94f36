"""Which recipe to train with on this GPU, lines to paste, what Apex costs. No torch here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apexbench.errors import UserError
from apexbench.report import evidence, loss_gate, names, numbers
from apexbench.report.cases import Arm, Case, Versus, merge
from apexbench.report.leading import leaders
from apexbench.report.pair import Pair, factor, pair
from apexbench.report.recipe_code import lines
from apexbench.report.repeats import Estimate
from apexbench.report.vocabulary import RELATION
from apexbench.transformer.models import model_config, nearest
from apexbench.transformer.recipe import Recipe, parse

KINDS = {False: "without torch.compile", True: "with torch.compile or a CUDA graph"}


@dataclass(frozen=True)
class Cost:
    """What having Apex costs: seconds to build it, bytes of the image; None where not recorded."""

    seconds: float | None
    image_bytes: float | None

    def __str__(self) -> str:
        parts = []
        if self.seconds is not None:
            parts.append(f"{numbers.significant(self.seconds / 60)} minutes to build")
        if self.image_bytes is not None:
            parts.append(f"an image of {numbers.memory(self.image_bytes)}")
        return " and ".join(parts) or "a build whose time this run did not record"


def cost(results: Path, machine: dict[str, Any], build_minutes: float | None) -> Cost:
    """From image.json or machine.json of the run; ``build_minutes`` overrules both."""
    image = evidence.mapping(results / "image.json")
    seconds = _amount(image.get("apex"), "seconds")
    if seconds is None:
        seconds = _amount(machine.get("apex"), "build_seconds")
    if build_minutes is not None:
        seconds = 60 * build_minutes
    return Cost(seconds, _amount(image, "size_bytes"))


def _amount(value: Any, key: str) -> float | None:
    """A positive number of a file beside the records; None where it says anything else."""
    found = value.get(key) if isinstance(value, dict) else None
    known = isinstance(found, int | float) and not isinstance(found, bool) and 0 < found < 1e15
    return found if known else None


def recommend(results: Path, model: str | None = None, build_minutes: float | None = None) -> str:
    """The recommendation for each model of a run, or the one named; UserError if there is none."""
    found = evidence.load(results)
    cases = [
        case
        for case in merge(found.records)
        if case.component == "transformer" and "gpus" not in case.config
    ]
    if not cases:
        raise UserError(
            f"{results} holds no training records: run `make report` first, or name a run with "
            "--results, such as results/reference/nvidia-h200."
        )
    names = [case.name for case in cases]
    if model is not None and model not in names:
        raise UserError(f"{results} has no model named '{model}'; {nearest(model, names)}")
    price = cost(results, found.machine, build_minutes)
    return "\n\n".join(_case(case, price) for case in cases if model in (None, case.name))


def _case(case: Case, price: Cost) -> str:
    text, winners = [_title(case)], []
    for compiled in (False, True):
        winner, said = _kind(case, compiled, price)
        winners.append(winner)
        text += said
    return "\n".join([*text, *_compared(case, *winners)])


def _title(case: Case) -> str:
    place = case.provenance
    tokens = next((arm.details["tokens_per_step"] for arm in case.arms
                   if "tokens_per_step" in arm.details), None)  # fmt: skip
    step = f", {tokens:,} tokens a step" if tokens else ""
    return f"{case.name} on {case.device[0]} (torch {place.get('torch')}{step})"


def _kind(case: Case, compiled: bool, price: Cost) -> tuple[Arm | None, list[str]]:
    arms = [arm for arm in case.arms if _eligible(case, arm) and _is_compiled(arm) == compiled]
    winner, why = _fastest(case, arms), [_without(case, compiled)]
    if any(arm.is_apex for arm in arms):
        apex, why = _apex(case, arms, compiled, price)
        winner = apex or winner
    if winner is None and arms:
        return None, [f"  {KINDS[compiled]}: no recipe to recommend.", *(f"    {w}" for w in why)]
    if winner is None:
        worse = [a for a in case.arms if case.time(a) is not None and _is_compiled(a) == compiled]
        said = f"none of {numbers.plural(len(worse), 'recipe')} learns as well as FP32"
        return None, [f"  {KINDS[compiled]}: {said if worse else 'not measured'}."]
    time = case.time(winner)
    assert time is not None
    head = (
        f"  {KINDS[compiled]}: {winner.implementation}, {_ms(time)} a step{_saving(case, winner)}."
    )
    why = [*_ties(case, arms, winner), _loss(case, winner), *why]
    kind = model_config(case.config["model"]).norm
    code = lines(parse(winner.implementation), str(case.provenance["device"]), kind)
    text = [*(f"    {line}" for line in why), *(f"      {line}".rstrip() for line in code)]
    return winner, [head, *text]


def _ties(case: Case, arms: Sequence[Arm], winner: Arm) -> list[str]:
    """That other recipes of its kind are not separated from the winner, and why it is named."""
    found = leaders(case, [arm for arm in arms if arm.is_apex == winner.is_apex])
    if found is None or found.sole is not None:
        return []
    others = [arm.implementation for arm in found.arms if arm is not winner]
    simplest = min(found.arms, key=_simplicity) is winner
    why = "the simplest of them" if simplest else "the simplest of those that beat torch's"
    return [f"It ties with {numbers.listing(others)}, not separated; it is {why}."]


def _loss(case: Case, arm: Arm) -> str:
    """What is known of the recipe's loss: nothing is promised that was not tested."""
    if arm is loss_gate.baseline(case):
        return "loss: it is the FP32 recipe that others are compared with."
    gate = loss_gate.judge(case, arm)
    if gate is None:
        seeds = len(loss_gate.losses(case, arm.implementation))
        return (
            f"loss: not tested (needs {loss_gate.FEWEST_SEEDS} seeds of this recipe and of "
            f"{loss_gate.BASELINE}; this run trained {seeds}): it may learn worse than FP32."
        )
    known = f"{gate.interval} nats/token against FP32 over {gate.seeds} seeds"
    if gate.verdict == loss_gate.NON_INFERIOR:
        return f"loss: as good as FP32's within {loss_gate.MARGIN:g}, {known}."
    return f"loss: {gate.verdict}, {known}: it is not shown to learn as well as FP32."


def _compared(case: Case, eager: Arm | None, compiled: Arm | None) -> list[str]:
    """Whether the compiled recipe is worth it: only where it is shown to be faster."""
    if eager is None or compiled is None:
        return []
    found = pair(case, eager, compiled)
    if found.verdict == "faster":
        return []
    return [
        f"  {compiled.implementation} is {RELATION[found.verdict]} {eager.implementation}, "
        f"{_ratio(found.ratio)}: stay {KINDS[False]}."
    ]


def _eligible(case: Case, arm: Arm) -> bool:
    """Whether an arm was timed and is not known to learn worse than FP32."""
    gate = loss_gate.judge(case, arm)
    return case.time(arm) is not None and (gate is None or gate.verdict != loss_gate.DIVERGED)


def _is_compiled(arm: Arm) -> bool:
    recipe = parse(arm.implementation)
    return recipe.compile or recipe.cudagraph or recipe.optimizer == "compiled"


def _fastest(case: Case, arms: Sequence[Arm]) -> Arm | None:
    """Torch's fastest arm, or the simplest of those that the fastest is not shown to beat."""
    found = leaders(case, [arm for arm in arms if not arm.is_apex])
    return min(found.arms, key=_simplicity) if found is not None else None


def _simplicity(arm: Arm) -> tuple[bool, int]:
    """Without GradScaler first, then with the fewest choices that are not torch's defaults."""
    recipe, plain = parse(arm.implementation), Recipe()
    changed = (recipe.norm != plain.norm) + (recipe.optimizer != plain.optimizer)
    return recipe.precision == "fp16", changed + len(recipe.flags)


def _without(case: Case, compiled: bool) -> str:
    """Why no recipe with Apex stands beside torch's."""
    lost = [arm for arm in case.arms if arm.is_apex and _is_compiled(arm) == compiled]
    if not lost:
        return "No recipe with Apex is in this run."
    what = f"{lost[0].implementation} {names.predicate(lost[0].status)}"
    return f"Apex's {what}: {lost[0].reason}."


def _saving(case: Case, arm: Arm) -> str:
    """What the arm saves a step against FP32 with torch's default AdamW."""
    default = case.arm(Recipe().label)
    slow = case.time(default) if default else None
    fast = case.time(arm)
    if default is None or slow is None or fast is None or arm is default:
        return ", which is torch's default" if arm is default else ""
    ratio = factor(case, default, arm)
    return (
        f", {numbers.significant((slow.value - fast.value) / 1e6)} ms less than torch's default "
        f"({default.implementation}, {_ms(slow)}; "
        f"{_ratio(ratio)})"
    )


def _apex(
    case: Case, arms: Sequence[Arm], compiled: bool, price: Cost
) -> tuple[Arm | None, list[str]]:
    """The recipe with Apex that is worth building it for, if there is one, and why or why not.

    It has to beat every recipe of torch that may be recommended and that its kind allows: torch's
    compiled ones do not stand in the way of a user without a compiler.
    """
    found = leaders(case, [arm for arm in arms if arm.is_apex])
    assert found is not None
    torch = [
        arm for arm in case.arms
        if not arm.is_apex and _eligible(case, arm) and (compiled or not _is_compiled(arm))
    ]  # fmt: skip
    rival = leaders(case, torch)
    if rival is None:
        winner = min(found.arms, key=_simplicity)
        return winner, [f"Only Apex's recipe {winner.implementation} was measured so."]
    first, fastest = rival.arms[0], found.arms[0]
    good = [arm for arm in found.arms if _beats(case, arm, torch, compiled)]
    if not good:
        return None, [f"{_said(case, first, fastest, compiled)}. No gain to pay for {price}."]
    winner = min(good, key=_simplicity)
    slow, fast = case.time(first), case.time(winner)
    assert slow is not None
    assert fast is not None
    ratio = _against(case, first, winner, compiled).ratio
    saved = f"{numbers.significant((slow.value - fast.value) / 1e6)} ms a step less"
    return winner, [f"{_said(case, first, winner, compiled)}, {saved}.", _break_even(ratio, price)]


def _beats(case: Case, apex: Arm, torch: Sequence[Arm], compiled: bool) -> bool:
    """Whether the record's own verdict says faster; each pair, where it has none of these."""
    told = _verdict(case, apex, compiled)
    if told is not None and {arm.implementation for arm in torch} <= set(told.members):
        return told.verdict == "faster"
    return all(pair(case, arm, apex).verdict == "faster" for arm in torch)


def _verdict(case: Case, apex: Arm, compiled: bool) -> Versus | None:
    """The record's verdict against torch's best of a kind; None where a member learns worse."""
    sets = ("torch_best", "torch_eager_best") if compiled else ("torch_eager_best",)
    versus = next((found for name in sets if (found := case.versus(apex, name))), None)
    known = [case.arm(name) for name in versus.members] if versus else []
    return versus if all(arm is None or _eligible(case, arm) for arm in known) else None


def _against(case: Case, torch: Arm, apex: Arm, compiled: bool) -> Pair:
    """Apex against torch's fastest: as the record's verdict has it, where it met the same rival."""
    found, told = pair(case, torch, apex), _verdict(case, apex, compiled)
    if told is not None and math.isclose(told.ratio.value, found.ratio.value, rel_tol=1e-6):
        return Pair(told.ratio, told.verdict)
    return found


def _said(case: Case, torch: Arm, apex: Arm, compiled: bool) -> str:
    """``Apex's X is faster than torch's fastest, Y: 1.05×``; the record's where it differs."""
    found = _against(case, torch, apex, compiled)
    said = (
        f"Apex's {apex.implementation} is {RELATION[found.verdict]} torch's fastest, "
        f"{torch.implementation}: {_ratio(found.ratio)}"
    )
    told = _verdict(case, apex, compiled)
    if told is None or told.verdict == found.verdict:
        return said
    rivals = numbers.plural(len(told.members), "recipe")
    return f"{said}; {RELATION[told.verdict]} all {rivals} of torch, {_ratio(told.ratio)}"


def _break_even(ratio: Estimate, price: Cost) -> str:
    """Hours of training after which the time saved is the build's: build / (1 - 1/ratio)."""
    if price.seconds is None:
        return f"Apex costs {price}: give --build-minutes for its break-even."
    value, low, high = (
        numbers.significant(price.seconds / 3600 / (1 - 1 / r)) if r > 1 else "never"
        for r in (ratio.value, ratio.high, ratio.low)
    )
    return f"Apex costs {price}: paid back after {value} hours of training [{low}, {high}]."


def _ratio(ratio: Estimate) -> str:
    return numbers.ratio(ratio.value, ratio.low, ratio.high)


def _ms(time: Estimate) -> str:
    return numbers.time(time.value, time.low, time.high)
