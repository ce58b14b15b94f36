"""Claim C4: torch.amp has to be as fast and as stable as apex.amp, and says what was missing."""

from __future__ import annotations

import pytest

from apexbench.report import claims
from apexbench.report.amp_claim import amp_obsolete
from apexbench.report.cases import merge

import record_factory as factory  # isort: skip

TORCH, APEX = "autocast_fp16", "apex_amp_O1"
MS = factory.MS
STEADY = {"loss": 2.1, "first_loss": 2.4, "skipped_steps": 1, "steps": 20}


def judged(torch=None, apex=None, speed=1.0, **changed):
    """C4's status and evidence where torch's and Apex's arm end with these details.

    Details that are a status make the arm a lost one.
    """
    [record] = factory.amp(**changed)
    for place, name, package, time, details in (
        (1, TORCH, "torch", 1.7, torch),
        (2, APEX, "apex-legacy", 1.7 / speed, apex),
    ):
        if isinstance(details, str):
            record.cells[place] = factory.lost(name, package, details, "it went wrong", None)
        else:
            own = STEADY | (details or {})
            cell = factory.cell(name, time * MS, package, "step_time", place, details=own)
            record.cells[place] = cell
    record.comparisons = []
    claim = amp_obsolete(merge([record]))
    return claim.status, " ".join(claim.evidence)


@pytest.mark.parametrize(
    ("torch", "apex", "speed", "status", "said"),
    [
        ({}, {}, 1.0, "supported", "apex_amp_O1 is as fast as autocast_fp16, 1.00×"),
        ({}, {}, 0.8, "supported", "apex_amp_O1 is slower than autocast_fp16, 0.8"),
        ({}, {}, 1.2, "refuted", "apex_amp_O1 is faster than autocast_fp16, 1.20×"),
        ({"loss": 99.0}, {}, 0.8, "refuted", "is not stable: its loss rose from 2.40 to 99.0"),
        (
            {"loss": 2.2},
            {},
            0.8,
            "refuted",
            "ended at 2.20, more than 0.0420 above the 2.10 without mixed",
        ),
        ({"loss": None}, {}, 0.8, "refuted", "autocast_fp16 is not stable: its loss is not finite"),
        ({"skipped_steps": 19}, {}, 0.8, "refuted", "the loss scaler skipped 19 of 20 steps"),
        ({}, {"skipped_steps": 19}, 0.8, "mixed", "0.800× [0.799, 0.801], but it is not stable"),
        ({"loss": 9}, {"loss": 9}, 0.8, "mixed", "autocast_fp16 is not stable"),
        ("diverged", {}, 1.0, "refuted", "autocast_fp16 diverged: it went wrong; apex_amp_O1 did"),
        ("diverged", {"loss": 9}, 1.0, "mixed", "apex_amp_O1 is not stable either."),
    ],
)
def test_speed_and_stability_both_decide(torch, apex, speed, status, said):
    found, evidence = judged(torch, apex, speed)
    assert said in evidence
    assert found == status


@pytest.mark.parametrize(
    ("torch", "apex", "said"),
    [
        ("out_of_memory", {}, "autocast_fp16 ran out of memory: it went wrong; apex.amp has no"),
        ("unavailable", {}, "apex.amp was measured, but there is no measured torch.amp"),
        ({}, "unavailable", "apex.amp's speed was not measured (unavailable: it went wrong)."),
        ("diverged", "diverged", "apex.amp's speed was not measured (diverged: it went wrong)."),
    ],
)
def test_what_is_missing_is_what_is_said(torch, apex, said):
    status, evidence = judged(torch, apex)
    assert status == claims.NOT_TESTED
    assert said in evidence
    assert "no arm of this run uses it" not in evidence


def test_a_run_without_apex_amp_says_so():
    [record] = factory.amp()
    del record.cells[2]
    [evidence] = amp_obsolete(merge([record])).evidence[:1]
    assert evidence == "apex.amp's speed was not measured: no arm of this run uses it."
    record.cells = record.cells[:1]
    record.comparisons = []
    legacy = factory.cell(APEX, MS, "apex-legacy", "step_time", details=STEADY)
    record.cells.append(legacy)
    assert "no arm of torch.amp in float16 is in this run" in " ".join(
        amp_obsolete(merge([record])).evidence
    )


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("mlp", "a loss of 2.10 nats and 1 skipped step."),
        ("transformer_block", "a loss of 2.10 of mean squared error and 1 skipped step."),
        ("other", "a loss of 2.10 and 1 skipped step."),
    ],
)
def test_a_loss_has_its_unit(model, said):
    assert f"autocast_fp16 ended with {said}" in judged(config={"model": model})[1]
