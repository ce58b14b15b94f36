"""How numbers are written: three digits, unit, interval."""

from __future__ import annotations

import pytest

from apexbench.report import names, numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.001234, "0.00123"),
        (1.0, "1.00"),
        (9.996, "10.0"),
        (999.6, "1000"),
        (12345.0, "12300"),
        (0.0, "0"),
        (float("nan"), "n/a"),
        (1.5e300, "1.50e+300"),
        (1.5e-300, "1.50e-300"),
    ],
)
def test_three_significant_digits(value: float, text: str) -> None:
    assert numbers.significant(value) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (numbers.time(1_663_000, 1_650_000, 1_680_000), "1.66 [1.65, 1.68] ms"),
        (numbers.time(999_900), "1.00 ms"),
        (numbers.rate(341_300, "tokens/s"), "341 k tokens/s"),
        (numbers.rate(4.26e12, "B/s"), "4.26 TB/s"),
        (numbers.ratio(1.0234, 1.01, 1.03), "1.02× [1.01, 1.03]"),
        (numbers.memory(2**31), "2.00 GiB"),
        (numbers.count(124_000_000), "124 M"),
        (numbers.listing(["a", "b", "c"]), "a, b and c"),
    ],
)
def test_numbers_carry_unit_and_interval(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("torch_compiled is failed", "compiled torch LayerNorm failed"),
        (
            "torch_compiled is out_of_memory; mine is unavailable",
            "compiled torch LayerNorm ran out of memory; mine is unavailable",
        ),
        ("no counterpart in torch", "no counterpart in torch"),
        ("it is itself what is failed", "it is itself what is failed"),
    ],
)
def test_a_records_reason_is_put_in_words(reason: str, text: str) -> None:
    assert names.readable("layer_norm", reason) == text
