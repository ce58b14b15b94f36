"""The tutorial's six claims, each with a status and its evidence, computed from records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from apexbench.records import BASELINES, VERDICTS
from apexbench.report import numbers, vocabulary
from apexbench.report.attribution import attribute, factor, missing_cells
from apexbench.report.cases import Arm, Case
from apexbench.report.repeats import verdict
from apexbench.report.scaling import BASELINE, FEWEST_SIZES, TORCH_AMP, TUTORIAL, fit, points
from apexbench.report.verdicts import Entry, Tally, against, all_of, missing_reason, tally

SUPPORTED, REFUTED, MIXED = "supported", "refuted", "mixed"
NOT_TESTED = "not tested on this machine"
CONSIDERABLE = 1.10
MARGIN = 0.01
TEXTS = {
    "C1": "Apex must be built from source with the C++ and CUDA extensions; a Python-only install "
    "lacks the fast kernels.",
    "C2": "FusedAdam updates weights faster than PyTorch's AdamW.",
    "C3": "FusedLayerNorm and FusedRMSNorm outperform PyTorch's standard layers.",
    "C4": "apex.amp is obsolete; torch.amp (autocast + GradScaler) is as fast and as stable.",
    "C5": "Apex + AMP gives a considerable throughput gain over FP32.",
    "C6": "The gain grows with model scale and parameter count.",
}


@dataclass
class Claim:
    """One claim, its status on this machine, and the sentences that say why."""

    id: str
    status: str
    evidence: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The claim as the tutorial makes it."""
        return TEXTS[self.id]


def evaluate(cases: Sequence[Case]) -> list[Claim]:
    """C1 to C6 from the cases of one machine."""
    by = {name: [case for case in cases if case.component == name] for name in vocabulary.ORDER}
    return [
        built_from_source(cases),
        faster_everywhere("C2", by["optimizer"], is_adam, by_case),
        faster_everywhere("C3", by["layer_norm"] + by["rms_norm"], is_apex, by_axis),
        amp_obsolete(by["amp"]),
        gain_over_fp32(by["transformer"]),
        grows_with_scale(by["transformer"]),
    ]


def is_apex(arm: Arm) -> bool:
    """Whether an arm is Apex's."""
    return arm.is_apex


def is_adam(arm: Arm) -> bool:
    """Whether an arm is Apex's FusedAdam, in any of its modes."""
    name = f"{arm.implementation} {arm.description}".lower()
    others = ("lamb", "sgd", "novograd", "adagrad")
    return arm.is_apex and not any(other in name for other in others)


def _status(counts: Tally) -> str:
    """All decided verdicts faster: supported; none: refuted; half or more unclear: mixed."""
    if counts.total == 0:
        return NOT_TESTED
    if counts.unclear >= counts.decided:
        return MIXED
    if counts.faster == counts.decided:
        return SUPPORTED
    return REFUTED if counts.faster == 0 else MIXED


def built_from_source(cases: Sequence[Case]) -> Claim:
    """C1, from what Apex is here and from what its arms said."""
    states = {}
    for case in cases:
        entry = case.provenance.get("apex")
        if isinstance(entry, dict):
            states[str(entry.get("state", "unknown"))] = entry
    arms = [(case, arm) for case in cases for arm in case.arms if arm.is_apex]
    good = [arm for _, arm in arms if arm.status == "ok"]
    evidence = [str(entry["sentence"]) for entry in states.values() if entry.get("sentence")]
    pythonic = [name for name in states if "python" in name.lower()]
    if pythonic:
        lost = [arm for _, arm in arms if arm.status != "ok"]
        evidence.append(
            f"With the Python-only install, {len(lost)} of {numbers.plural(len(arms), 'Apex cell')} "
            "could not be measured."
        )
        return Claim("C1", SUPPORTED if lost and not good else MIXED, evidence)
    if good:
        seen = [arm for arm in good if arm.kernels]
        evidence.append(
            f"{numbers.plural(len(good), 'Apex cell')} ran; the records name the CUDA kernels of "
            f"{len(seen)} of them. A Python-only install was not measured in this run, so the "
            "contrast itself is untested."
        )
    elif reason := missing_reason(cases, is_apex):
        evidence.append(f"No Apex cell could be measured ({reason}).")
    return Claim("C1", NOT_TESTED, evidence or ["No record says what Apex is on this machine."])


def faster_everywhere(
    id: str,
    cases: Sequence[Case],
    select: Callable[[Arm], bool],
    detail: Callable[[list[Entry]], list[str]],
) -> Claim:
    """C2 and C3: every verdict against every baseline, counted."""
    entries = all_of(cases, select)
    if not entries:
        reason = missing_reason(cases, select)
        return Claim(id, NOT_TESTED, [numbers.sentence(reason) if reason else "No case measured it."])
    evidence = []
    for baseline in BASELINES:
        found = list(against(cases, baseline, select))
        if found:
            name = vocabulary.BASELINE_NAMES[baseline]
            evidence.append(f"Against {name}: {tally(found)}{_range(found)}.")
    return Claim(id, _status(tally(entries)), evidence + detail(entries))


def _range(entries: list[Entry]) -> str:
    ratios = sorted(versus.ratio.value for _, _, versus in entries)
    if len(ratios) == 1:
        ratio = entries[0][2].ratio
        return f" ({numbers.ratio(ratio.value, ratio.low, ratio.high)})"
    return f" (speed {numbers.span(ratios)})"


def by_case(entries: list[Entry]) -> list[str]:
    """C2: each arm against torch's best eager optimizer, with its ratio."""
    return [
        f"{case.name}: {arm.implementation} is {versus.verdict} against torch's best eager AdamW, "
        f"{numbers.ratio(versus.ratio.value, versus.ratio.low, versus.ratio.high)}."
        for case, arm, versus in entries
        if versus.baseline == "torch_eager_best"
    ][:6]


def by_axis(entries: list[Entry]) -> list[str]:
    """C3: verdicts against torch's best eager norm by component, dtype and direction."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        case, _, versus = entry
        if versus.baseline != "torch_eager_best":
            continue
        config = case.config
        direction = str(config.get("direction", "n/a"))
        key = (
            vocabulary.APEX_PART[case.component],
            str(config.get("dtype", "n/a")) + (" autocast" if config.get("autocast") else ""),
            vocabulary.DIRECTIONS.get(direction, direction),
        )
        groups.setdefault(key, []).append(entry)
    return [
        f"{' '.join(key)}, {_widths(found)}, against torch's best eager: "
        f"{tally(found)}{_range(found)}."
        for key, found in groups.items()
    ]


def _widths(entries: list[Entry]) -> str:
    widths = sorted({case.config.get("width", 0) for case, _, _ in entries})
    return f"width {widths[0]}" + (f" to {widths[-1]}" if len(widths) > 1 else "")


def amp_obsolete(cases: Sequence[Case]) -> Claim:
    """C4: apex.amp's arms against torch's, and what became of scale and loss."""
    evidence, verdicts = [], []
    for case in cases:
        rival = _torch_fp16(case)
        for arm in case.arms:
            if rival is None or not _scales(arm) or case.time(arm) is None:
                continue
            ratio = factor(case, rival, arm)
            verdicts.append(verdict(ratio, MARGIN))
            evidence.append(
                f"{case.name}: {arm.implementation} is {verdicts[-1]} against {rival.implementation}, "
                f"{numbers.ratio(ratio.value, ratio.low, ratio.high)}."
            )
    evidence += [line for case in cases for line in _stability(case)]
    if not verdicts:
        reason = missing_reason(cases, is_apex)
        evidence.insert(
            0,
            f"apex.amp's speed was not measured ({reason})."
            if reason
            else "apex.amp's speed was not measured: no arm of this run uses it.",
        )
        return Claim("C4", NOT_TESTED, evidence)
    counts = Tally(**{name: verdicts.count(name) for name in VERDICTS})
    status = MIXED
    if counts.faster == 0 and counts.unclear < counts.decided:
        status = SUPPORTED
    elif counts.faster == counts.decided and counts.unclear < counts.decided:
        status = REFUTED
    return Claim("C4", status, evidence)


def _torch_fp16(case: Case) -> Arm | None:
    """torch.amp's arm: float16 autocast with GradScaler."""
    names = ("gradscaler", "fp16", "float16")
    return next(
        (
            arm
            for name in names
            for arm in case.arms
            if not arm.is_apex and name in arm.implementation.lower() and case.time(arm)
        ),
        None,
    )


def _scales(arm: Arm) -> bool:
    """Whether an arm is apex.amp in the modes that torch.amp replaces (O1, O2)."""
    return arm.is_apex and not arm.implementation.lower().endswith(("o0", "o3"))


def _stability(case: Case) -> list[str]:
    lines = []
    for arm in case.arms:
        if arm.status != "ok":
            continue
        skipped, loss = arm.details.get("skipped_steps"), arm.details.get("loss")
        if skipped is None and loss is None:
            continue
        parts = []
        if isinstance(loss, int | float):
            parts.append(f"loss {numbers.significant(loss)}")
        if isinstance(skipped, int | float):
            parts.append(numbers.plural(int(skipped), "skipped step"))
        lines.append(f"{case.name}: {arm.implementation} ended with {', '.join(parts)}.")
    return lines[:8]


def gain_over_fp32(cases: Sequence[Case]) -> Claim:
    """C5: the whole gain and what each piece adds; Apex must add to it for a plain "supported"."""
    evidence, gains, apex = [], [], []
    for case in cases:
        found = [
            attribute(case, precision, optimizer)
            for precision, optimizer in (("fp32", "default"), ("tf32", "default"), ("fp32", "fused"))
        ]
        for entry in found:
            if entry is None:
                continue
            pieces = ", ".join(
                f"{name} {numbers.ratio(part.value, part.low, part.high)}"
                for name, part in entry.parts.items()
            )
            total = numbers.ratio(entry.total.value, entry.total.low, entry.total.high)
            evidence.append(f"{case.name}: {entry.target} over {entry.baseline} is {total} = {pieces}.")
        if found[0] is not None:
            gains.append(found[0].total)
            apex.append((found[2] or found[0]).apex())
        elif lacking := missing_cells(case, "fp32", "default"):
            evidence.append(
                f"{case.name}: no attribution, {numbers.listing(lacking)} "
                f"{'is' if len(lacking) == 1 else 'are'} not measured."
            )
    if not gains:
        reason = missing_reason(cases, is_apex)
        if reason:
            evidence = [numbers.sentence(reason)]
        return Claim("C5", NOT_TESTED, evidence or ["No Transformer was trained."])
    low = min(gain.low for gain in gains)
    if all(gain.high < CONSIDERABLE for gain in gains):
        return Claim("C5", REFUTED, evidence)
    evidence.append(
        "Norm and optimizer together, against torch's fused AdamW where it was measured, bring "
        f"{numbers.listing([numbers.ratio(value) for value in apex])}; the rest is precision."
    )
    plain = low > CONSIDERABLE and all(value > 1.01 for value in apex)
    return Claim("C5", SUPPORTED if plain else MIXED, evidence)


def grows_with_scale(cases: Sequence[Case]) -> Claim:
    """C6: the slope of the speed-up per doubling of parameters, over at least four sizes."""
    whole = points(cases, BASELINE, TUTORIAL)
    confidence = cases[0].confidence if cases else 0.99
    slope = fit(whole, confidence)
    if slope is None:
        sizes = len({point.parameters for point in whole})
        return Claim(
            "C6",
            NOT_TESTED,
            [f"The claim needs at least {FEWEST_SIZES} model sizes; this run has {sizes}."],
        )
    evidence = [_slope_sentence("The tutorial's recipe over FP32", slope.per_doubling, len(whole))]
    part = fit(points(cases, TORCH_AMP, TUTORIAL), confidence)
    if part is not None:
        evidence.append(
            _slope_sentence(
                "Apex's part (the tutorial's recipe over torch's fp16 recipe with fused AdamW)",
                part.per_doubling,
                len(part.points),
            )
        )
    step = slope.per_doubling
    status = SUPPORTED if step.low > 1 else REFUTED if step.high < 1.01 else MIXED
    return Claim("C6", status, evidence)


def _slope_sentence(what: str, step: object, sizes: int) -> str:
    value, low, high = step.value, step.low, step.high  # type: ignore[attr-defined]
    return (
        f"{what}: its speed-up changes by a factor of {numbers.ratio(value, low, high)} per "
        f"doubling of the parameters, over {sizes} sizes."
    )
