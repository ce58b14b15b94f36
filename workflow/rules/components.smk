# One job a component: all its cases, a record each. The index is the declared output; a record that
# is still valid is kept (see workflow/apexbench/jobs).

for component in PLAN.components:

    rule:
        name:
            component
        input:
            PLAN.sources(component),
            PLAN.image.record,
        output:
            f"results/records/{component}/index.json",
        log:
            f"results/logs/{component}.log",
        resources:
            gpu=1,
        params:
            component=component,
            request=PLAN.request(component),
        message:
            f"Measuring {component}"
        shell:
            "{MEASURE} measure --request {params.request:q} --out {output:q} --log {log:q}"
