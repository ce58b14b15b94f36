# apexbench: measure what NVIDIA Apex buys on this machine, component by component and end to end.
#
#   image (where a container engine brings Apex) ── every measuring rule
#   machine ──────────────┐
#   ceiling, optimizer, layer_norm, rms_norm, … ────┐
#   transformer (one job a model and process) ──────┴── table ── figures ── report
#
# Logic is in the package (workflow/apexbench); rules are wiring. Edit config.yaml, not this file.
import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir) / "workflow"))

from apexbench import broken_pipe, owner, plan as plans

broken_pipe.outlive()

PLAN = plans.load(
    Path(workflow.basedir),
    config,
    in_job=workflow.remote_exec,
    configfiles=workflow.overwrite_configfiles,
)
APEXBENCH = PLAN.command()
MEASURE = PLAN.command(measuring=True)


include: "workflow/rules/image.smk"
include: "workflow/rules/machine.smk"
include: "workflow/rules/components.smk"
include: "workflow/rules/transformer.smk"
include: "workflow/rules/report.smk"


localrules:
    all,
    configuration,
    table,
    figures,
    report,
    reference_report,


rule all:
    default_target: True
    input:
        "results/report.html",
        REFERENCE_REPORTS,
        # Implied, but named: Snakemake makes again what is missing of these alone.
        PLAN.indexes,
        rules.machine.output,
        rules.configuration.output,
        rules.table.output,
        rules.figures.output,
        rules.report.output,


onstart:
    owner.begin(
        PLAN,
        elsewhere=workflow.non_local_exec,
        gpus=workflow.global_resources.get("gpu").value,
    )


onsuccess:
    owner.succeed(Path("results/report.html"), REFERENCE_REPORTS)


onerror:
    owner.fail(PLAN, log)
