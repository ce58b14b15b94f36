# The machine and the effective configuration, for the report.


rule configuration:
    output:
        "results/config.json",
    params:
        text=plans.effective(PLAN),
    message:
        "Writing the effective configuration"
    shell:
        "{APEXBENCH} configuration --text={params.text:q} --out {output:q}"


rule machine:
    input:
        PLAN.image.record,
    output:
        "results/machine.json",
    log:
        "results/logs/machine.log",
    resources:
        gpu=1,
    params:
        environment=PLAN.environment,
    message:
        "Describing this machine"
    shell:
        "{MEASURE} machine --out {output:q} 2> {log:q}"
