"""The Methods section and the references: prose, with its figures taken from the records."""

from __future__ import annotations

from collections.abc import Sequence

from apexbench.report import numbers
from apexbench.report.cases import Case
from apexbench.report.repeats import FEWEST_PROCESSES
from apexbench.report.verdicts import all_of

REFERENCES = (
    ("NVIDIA Apex, source repository.", "https://github.com/NVIDIA/apex"),
    (
        "J. Ansel et al., PyTorch 2: Faster Machine Learning Through Dynamic Python Bytecode "
        "Transformation and Graph Compilation, ASPLOS 2024.",
        "https://doi.org/10.1145/3620665.3640366",
    ),
    (
        "I. Loshchilov and F. Hutter, Decoupled Weight Decay Regularization, ICLR 2019.",
        "https://arxiv.org/abs/1711.05101",
    ),
    ("J. L. Ba, J. R. Kiros and G. E. Hinton, Layer Normalization, 2016.", "https://arxiv.org/abs/1607.06450"),
    (
        "B. Zhang and R. Sennrich, Root Mean Square Layer Normalization, NeurIPS 2019.",
        "https://arxiv.org/abs/1910.07467",
    ),
    ("P. Micikevicius et al., Mixed Precision Training, ICLR 2018.", "https://arxiv.org/abs/1710.03740"),
    (
        "A. Chowdhery et al., PaLM: Scaling Language Modeling with Pathways, 2022 (the FLOP count of "
        "its appendix B).",
        "https://arxiv.org/abs/2204.02311",
    ),
    (
        "S. Williams, A. Waterman and D. Patterson, Roofline: An Insightful Visual Performance Model, "
        "CACM 52(4), 2009.",
        "https://doi.org/10.1145/1498765.1498785",
    ),
    (
        "L. S. Shapley, A Value for n-Person Games, 1953.",
        "https://doi.org/10.1515/9781400881970-018",
    ),
    (
        "J. W. Tukey and D. H. McLaughlin, Less Vulnerable Confidence and Significance Procedures for "
        "Location Based on a Single Sample, Sankhya A 25, 1963.",
        "https://www.jstor.org/stable/25049278",
    ),
    (
        "F. Mölder et al., Sustainable Data Analysis with Snakemake, F1000Research 10:33, 2021.",
        "https://doi.org/10.12688/f1000research.29032.2",
    ),
)


def sections(cases: Sequence[Case]) -> list[tuple[str, str]]:
    """(heading, paragraph) pairs."""
    margins = sorted({versus.margin for _, _, versus in all_of(cases)}) or [0.01]
    confidence = f"{100 * (cases[0].confidence if cases else 0.99):g} %"
    margin = numbers.listing([f"{100 * value:g} %" for value in margins], "or")
    return [
        (
            "Parity before speed",
            "Every implementation is first compared with a float64 reference on fresh random inputs, "
            "forward and backward. The tolerance follows from the dtype and the reduction length and "
            "stands in the record. An arm outside it is parity_failed, with its error, and no speed "
            "of it is shown. Optimizers run at least ten steps with a changing learning rate and "
            "settings chosen so that planted faults show.",
        ),
        (
            "Fair pairs",
            "All arms of a case do the same work with the same hyper-parameters, shapes and "
            "synchronisation; weight decay is set explicitly, because the libraries' defaults differ. "
            "TF32 is set explicitly and recorded. Backward is torch.autograd.grad with a dense random "
            "gradient on a fresh forward built outside the window. With gradient scaling, gradients, "
            "scale and growth tracker are restored before each sample.",
        ),
        (
            "Two quantities",
            "device_time is the length of the device's work alone: launches are queued ahead of the "
            "events. step_time is synchronised wall time per call, host included. They are never "
            "mixed: optimizers, clipping, mixed precision and training are judged by step_time; norms, "
            "softmax and losses by device_time.",
        ),
        (
            "Interleaved samples",
            "The arms of a case run in one process, in random order, round after round, so that drift "
            "meets all of them alike. Compilation and autotuning end before the first round. The L2 "
            "cache is made cold by reading at least four times its size outside the window; short "
            "calls are sampled several at a time over rotated buffers. A pilot fixes the number of "
            "rounds, and only later rounds are used. Samples are kept raw; outliers are counted, not "
            "dropped.",
        ),
        (
            "Verdicts",
            f"A ratio is the speed relative to a baseline, with its {confidence} interval from the "
            f"paired log ratios of independent blocks. With a margin m of {margin}, a verdict is faster "
            "if the whole interval lies above 1 + m, slower if below 1/(1 + m), same if inside, and "
            "unclear otherwise. It comes from the shown interval alone. torch's default is what "
            "PyTorch does when nothing is asked for; its best eager and its best with torch.compile "
            "are sets, and faster than a set means faster than every member.",
        ),
        (
            "Between runs",
            f"Where a case was repeated in at least {FEWEST_PROCESSES} fresh processes, its interval is "
            "Student-t over the processes' logarithms. With two to four processes it is the hull of "
            "their intervals. Fewer than that is labelled as having no between-run interval.",
        ),
        (
            "Distance to the limit",
            "Bytes are the least that the operation must move at its required output dtype, equal for "
            "all arms; FLOPs a token are 6 N_matmul + 6 L d T for a causal model with a tied head "
            "counted once and the input embedding left out; recompute never counts. The ceilings are "
            "measured in the same run: copy bandwidth and the best of several matmul shapes. A share "
            "is given only where the data is at least four times the L2 cache.",
        ),
        (
            "Attribution",
            "The gain of the tutorial's recipe is divided among precision, norm and optimizer by "
            "Shapley values of the log step time over the full factorial, and again with TF32 as the "
            "precision baseline and with torch's fused AdamW as the optimizer baseline. torch.compile "
            "and CUDA graphs are separate.",
        ),
        (
            "State of the machine",
            "Clocks, temperature, power, throttle reasons and foreign processes are read for every "
            "block and kept in the record.",
        ),
    ]
