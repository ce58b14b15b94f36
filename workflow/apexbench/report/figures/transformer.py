"""Training throughput of every recipe, a panel per model."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.ticker import FuncFormatter

from apexbench.report import ceilings, leading, names, numbers
from apexbench.report.cases import Arm, Case
from apexbench.report.figures import style
from apexbench.report.figures.style import Figure
from apexbench.report.repeats import Estimate

COLUMNS = 3
MOST_CASES = 9


def throughput(case: Case, arm: Arm) -> Estimate | None:
    """Tokens per second, or None where the recipe was not timed."""
    time, tokens = arm.times.get("step_time"), arm.details.get("tokens_per_step")
    if time is None or not isinstance(tokens, int | float):
        return None
    return time.inverse(tokens * 1e9)


def draw(cases: Sequence[Case], limits: ceilings.Ceilings) -> list[Figure]:
    """One figure per three models: recipes from slowest to fastest, from zero."""
    shown = list(cases)[:MOST_CASES]
    parts = [shown[i : i + COLUMNS] for i in range(0, len(shown), COLUMNS)]
    more = f" The first {len(shown)} of {len(cases)} models are drawn."
    return [
        _sheet(part, limits, index, more if len(cases) > len(shown) else "")
        for index, part in enumerate(parts)
    ]


def _sheet(cases: list[Case], limits: ceilings.Ceilings, index: int, more: str) -> Figure:
    labels = list(dict.fromkeys(arm.implementation for case in cases for arm in case.arms))
    labels.sort(key=lambda label: _rank(cases, label))
    sheet = style.sheet(7.2, 0.9 + 0.17 * len(labels))
    grid = style.axes(sheet, 1, len(cases), sharey=True)[0]
    for ax, case in zip(grid, cases, strict=True):
        top = 0.0
        for y, label in enumerate(labels):
            arm = case.arm(label)
            if arm is None:
                continue
            rate = throughput(case, arm)
            if rate is None:
                style.lost_mark(ax, 0.03, y, arm.status)
                continue
            top = max(top, rate.high)
            kind = style.kind(arm)
            text = (
                f"{label}, {case.name}: "
                f"{numbers.rate(rate.value, 'tokens/s', rate.low, rate.high)}, "
                f"n = {arm.samples['step_time']}"
            )
            share = ceilings.utilization(case, arm, "flops_per_token", limits)
            if share is not None:
                text += f", MFU {numbers.share(share)}"
            ax.plot(
                [rate.low / 1e3, rate.high / 1e3], [y, y], color=style.KINDS[kind], linewidth=1.6
            )
            ax.plot(
                rate.value / 1e3,
                y,
                style.MARKERS[kind],
                color=style.KINDS[kind],
                markersize=4.6,
                gid=sheet.title(text),
            )
        ax.set_xlim(0, (top or 1e3) / 1e3 * 1.06)
        ax.set_title(numbers.short(case.name, 30))
        ax.set_xlabel("thousand tokens/s")
        ax.xaxis.set_major_formatter(FuncFormatter(style.plain))
    grid[0].set_yticks(range(len(labels)), [numbers.short(label, 40) for label in labels])
    grid[0].set_ylim(len(labels) - 0.4, -0.6)
    style.legend(sheet, [style.kind(a) for case in cases for a in case.arms if case.time(a)])
    finding = " ".join(_finding(case) for case in cases)
    return Figure(
        "transformer-throughput" + (f"-{index + 1}" if index else ""),
        "transformer",
        "Transformer: training throughput per recipe",
        f"Tokens per second with {numbers.confidence(cases[0].confidence)} intervals, from zero, "
        "right is faster. A label reads "
        f"precision+norm+optimizer. {finding}{more}",
        finding,
        sheet.svg(),
    )


def _rank(cases: list[Case], label: str) -> float:
    arms = [(case, case.arm(label)) for case in cases]
    rates = [rate.value for case, arm in arms if arm and (rate := throughput(case, arm))]
    return rates[0] if rates else -1.0


def _finding(case: Case) -> str:
    found = leading.leaders(case, [arm for arm in case.arms if throughput(case, arm)])
    if found is None:
        return f"{case.name}: no recipe could be timed."
    best = found.arms[0]
    rate = throughput(case, best)
    assert rate is not None
    if found.sole is None:
        shown = numbers.listing([names.says(case, arm) for arm in found.arms])
        text = numbers.rate(rate.value, "tokens/s", rate.low, rate.high)
        return f"{case.name}: no recipe is fastest: {shown} are not separated (the first: {text})."
    text = numbers.rate(rate.value, "tokens/s", rate.low, rate.high)
    versus = best.versus.get(("step_time", "torch_default"))
    against = (
        f", {numbers.ratio(versus.ratio.value, versus.ratio.low, versus.ratio.high)} the speed of "
        f"{versus.members[0]}"
        if versus
        else ""
    )
    return f"{case.name}: {names.says(case, best)} is fastest with {text}{against}."
