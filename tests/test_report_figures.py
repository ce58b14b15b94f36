"""What the figures draw: every arm its own mark, lines over widths alone, no arm out of scale."""

from __future__ import annotations

import re

import pytest

import record_factory as factory
from apexbench.records import Work
from apexbench.report import ceilings
from apexbench.report.cases import merge
from apexbench.report.figures import ceiling, norms, times


def test_every_arm_has_its_own_mark_in_the_figure_of_the_ceiling():
    cases = merge(factory.ceilings() + factory.optimizer())
    own = [case for case in cases if case.component == "optimizer"]
    shown = ceiling._marks(
        own, dict.fromkeys(((c.name, a.implementation) for c in own for a in c.arms), 0.5)
    )
    assert len(shown) == 6
    assert len({mark[:2] for mark in shown.values()}) == len(shown)
    assert len({mark[2] for mark in shown.values()}) == len(shown)
    svg = ceiling.draw("optimizer", own, ceilings.measured(cases)).svg
    assert svg.count("<title>") == 12


def test_a_line_joins_only_what_differs_in_width_alone():
    def case(width: int, rows: int):
        cells = [factory.cell("eager", 1e6), factory.cell("fused_layer_norm", 2e6, "apex")]
        config = {"width": width, "rows": rows, "dtype": "bfloat16", "direction": "forward"}
        return factory.record(
            "layer_norm", f"{rows}x{width}", cells, default="eager", eager=("eager",),
            best=("eager",), config=config, work=Work(None, None, "n/a", None, "none"),
        )  # fmt: skip

    cases = merge([case(768, 64), case(1024, 64), case(1500, 4096), case(2048, 64)])
    found = [(c.config["width"], c, c.versus(c.arms[1], "torch_best")) for c in cases]
    joined = norms._joined(sorted(found, key=lambda entry: entry[0]))
    assert [list(points) for points in joined] == [[768, 1024, 2048]]
    assert "cases that differ in width alone" in norms.draw("layer_norm", cases)[0].caption


@pytest.mark.parametrize(("slow", "log"), [(2.0, False), (40.0, True)])
def test_one_slow_arm_does_not_press_the_others_together(slow, log):
    cells = [
        factory.cell(name, factor * 1e6, kind="step_time")
        for name, factor in (("torch_fused", 1.0), ("apex", 1.2), ("torch_forloop", slow))
    ]
    case = merge([factory.record("optimizer", "x", cells, "step_time")])
    places = [
        float(x) for x in re.findall(r'<use [^>]*x="([\d.]+)"', times.draw("optimizer", case).svg)
    ]
    assert places
    axis = times._scale([time for arm in case[0].arms if (time := case[0].time(arm))])
    assert axis is log
