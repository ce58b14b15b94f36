# From records to the table, the figures and the report. Nothing here imports torch.

REPORT_SOURCES = (
    PLAN.tree("apexbench/report", "*.py")
    + PLAN.tree("apexbench/selfcheck", "*.py")
    + PLAN.tree("report", "*")
)
REFERENCE_REPORTS = [
    f"results/report/{machine}/report.html" for machine in PLAN.references()
]

WITH_PAPER = PLAN.config.report["pdf"]
PAPER_FLAG = "--pdf" if WITH_PAPER else "--no-pdf"
PAPER = {
    "pdf": report(
        "results/report.pdf", caption="../report/captions/paper.rst", category="Report"
    )
}
REFERENCE_PAPER = {"pdf": "results/report/{machine}/report.pdf"}


rule table:
    input:
        PLAN.indexes,
        "results/config.json",
        sources=PLAN.tree("apexbench/report", "*.py"),
    output:
        report(
            "results/summary.csv",
            caption="../report/captions/summary.rst",
            category="Tables",
        ),
        "results/summary.json",
    log:
        "results/logs/table.log",
    message:
        "Merging the records into one table"
    shell:
        "{APEXBENCH} aggregate --results results 2> {log:q}"


rule figures:
    input:
        PLAN.indexes,
        "results/config.json",
        "results/summary.csv",
        sources=PLAN.tree("apexbench/report", "*.py"),
    output:
        report(
            directory("results/figures"),
            patterns=["{figure}.svg"],
            caption="../report/captions/figures.rst",
            category="Figures",
            labels={"figure": "{figure}"},
        ),
    log:
        "results/logs/figures.log",
    message:
        "Drawing the figures"
    shell:
        "{APEXBENCH} figures --results results --out {output:q} 2> {log:q}"


rule report:
    input:
        PLAN.indexes,
        "results/summary.csv",
        "results/figures",
        "results/machine.json",
        "results/config.json",
        PLAN.selfcheck(),
        sources=REPORT_SOURCES,
    output:
        **(PAPER if WITH_PAPER else {}),
        html=report(
            "results/report.html",
            caption="../report/captions/html.rst",
            category="Report",
        ),
    log:
        "results/logs/report.log",
    params:
        beside=[f"--beside={page}" for page in REFERENCE_REPORTS],
    message:
        "Writing the report"
    shell:
        "{APEXBENCH} report --records results --out results {PAPER_FLAG:q} {params.beside:q} 2> {log:q}"


rule reference_report:
    input:
        records=lambda wildcards: PLAN.reference_files(wildcards.machine),
        sources=REPORT_SOURCES,
    output:
        **(REFERENCE_PAPER if WITH_PAPER else {}),
        html="results/report/{machine}/report.html",
    log:
        "results/logs/report-{machine}.log",
    message:
        "Rebuilding the report of {wildcards.machine}"
    shell:
        "{APEXBENCH} report --records results/reference/{wildcards.machine:q}"
        " --out results/report/{wildcards.machine:q} {PAPER_FLAG:q} 2> {log:q}"
