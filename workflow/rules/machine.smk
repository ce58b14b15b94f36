# The machine and the effective configuration, for the report.


rule configuration:
    output:
        "results/config.json",
    params:
        text=plans.effective(PLAN),
    shell:
        "printf '%s\\n' {params.text:q} > {output:q}"


rule machine:
    output:
        "results/machine.json",
    log:
        "results/logs/machine.log",
    resources:
        gpu=1,
    params:
        environment=PLAN.environment,
    shell:
        "{MEASURE} machine --out {output:q} 2> {log:q}"
