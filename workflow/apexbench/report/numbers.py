"""How a number is written: three significant digits, its unit, its interval. The one place."""

from __future__ import annotations

import math
from collections.abc import Sequence

NOT_A_NUMBER = "n/a"
_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_BYTES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
_DECIMAL = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def significant(value: float, digits: int = 3) -> str:
    """``value`` with three significant digits and no exponent: 0.00123, 1.05, 12.3, 1230.

    What no measurement gives, above 1e15 or below 1e-12, has one, so that it stays short.
    """
    if not math.isfinite(value):
        return NOT_A_NUMBER
    if value == 0:
        return "0"
    if not 1e-12 <= abs(value) < 1e15:
        return f"{value:.{digits - 1}e}"
    exponent = math.floor(math.log10(abs(value)))
    rounded = round(value, digits - 1 - exponent)
    exponent = math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{max(digits - 1 - exponent, 0)}f}"


def _scale(value: float, steps: Sequence[tuple[float, str]]) -> tuple[float, str]:
    for size, unit in steps:
        if abs(value) >= size * 0.9995:
            return size, unit
    return steps[-1]


def _with_interval(value: float, low: float, high: float, size: float, unit: str) -> str:
    point, ends = (
        significant(value / size),
        f"{significant(low / size)}, {significant(high / size)}",
    )
    return f"{point} [{ends}] {unit}".rstrip()


def time(value: float, low: float | None = None, high: float | None = None) -> str:
    """Nanoseconds as ``1.66 ms`` or, with an interval, ``1.66 [1.65, 1.68] ms``."""
    size, unit = _scale(value, _TIMES)
    if low is None or high is None:
        return f"{significant(value / size)} {unit}"
    return _with_interval(value, low, high, size, unit)


def rate(value: float, unit: str, low: float | None = None, high: float | None = None) -> str:
    """A rate with a decimal prefix: ``341 k tokens/s``, ``4.26 TB/s``, ``800 TFLOP/s``."""
    size, prefix = _scale(value, _DECIMAL)
    name = f"{prefix} {unit}".strip() if unit == "tokens/s" else f"{prefix}{unit}"
    if low is None or high is None:
        return f"{significant(value / size)} {name}"
    return _with_interval(value, low, high, size, name)


def ratio(value: float, low: float | None = None, high: float | None = None) -> str:
    """A speed ratio: ``1.02×`` or ``1.02× [1.01, 1.03]``."""
    if low is None or high is None:
        return f"{significant(value)}×"
    return f"{significant(value)}× [{significant(low)}, {significant(high)}]"


def difference(value: float, low: float, high: float) -> str:
    """A signed difference of losses in nats/token: ``+0.003 [−0.001, +0.007]``."""
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]".replace("-", "−")


def confidence(value: float) -> str:
    """A confidence level: ``99 %``."""
    return f"{float(f'{100 * value:.4g}'):g} %"


def span(values: Sequence[float]) -> str:
    """The range of several ratios: ``0.71× to 1.28×``, or one ratio if they read alike."""
    ends = list(dict.fromkeys([ratio(min(values)), ratio(max(values))]))
    return " to ".join(ends)


def share(value: float, low: float | None = None, high: float | None = None) -> str:
    """A fraction of one as a percentage: ``72.1 %`` or ``72.1 % [71.8, 72.5]``."""
    text = f"{significant(100 * value)} %"
    if low is None or high is None:
        return text
    return f"{text} [{significant(100 * low)}, {significant(100 * high)}]"


def small(value: float) -> str:
    """An error far below one, which three digits show best with an exponent: ``3.05e-07``."""
    return "0" if value == 0 else f"{value:.2e}" if abs(value) < 0.001 else significant(value)


def count(value: float, plain: bool = False) -> str:
    """A count of parameters: ``124 M``, ``1.30 B``; ``plain`` leaves needless zeros out."""
    size, prefix = _scale(value, ((1e9, "B"), (1e6, "M"), (1e3, "k"), (1.0, "")))
    digits = significant(value / size) if size > 1 else f"{value:.0f}"
    return f"{float(digits):g} {prefix}".strip() if plain else f"{digits} {prefix}".strip()


def memory(value: float) -> str:
    """Bytes as ``2.10 GiB``."""
    size, unit = _scale(value, _BYTES)
    return f"{significant(value / size)} {unit}"


def seconds(value: float) -> str:
    """A duration in seconds as ``4.20 s`` or ``3 min 20 s``."""
    if value < 60:
        return f"{significant(value)} s"
    return f"{round(value) // 60} min {round(value) % 60} s"


def quantity(value: float, unit: str, low: float | None = None, high: float | None = None) -> str:
    """A row of summary.csv as text: its value, interval and unit."""
    return time(value, low, high) if unit == "ns" else rate(value, unit, low, high)


def listing(items: Sequence[str], conjunction: str = "and", most: int = 4) -> str:
    """``a, b and c``; a long list is cut with its length stated: ``a, b, c, d and 7 more``."""
    items = list(items)
    if len(items) > most + 1:
        return ", ".join(items[:most]) + f" and {len(items) - most} more"
    if len(items) <= 1:
        return "".join(items)
    return f"{', '.join(items[:-1])} {conjunction} {items[-1]}"


def plural(number: int, noun: str, many: str | None = None) -> str:
    """``1 case``, ``3 cases``."""
    return f"{number} {noun if number == 1 else many or noun + 's'}"


def sentence(text: str) -> str:
    """``text`` with a capital first letter and a full stop; the rest as it is."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def short(text: str, most: int = 44) -> str:
    """One line of at most ``most`` characters."""
    text = " ".join(str(text).split())
    return text if len(text) <= most else text[: most - 1] + "…"
