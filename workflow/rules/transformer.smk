# The end-to-end comparison: one job a model and fresh process, all recipes interleaved in it.


rule transformer:
    input:
        PLAN.sources("transformer"),
    output:
        "results/records/transformer/{model}-p{process}/index.json",
    log:
        "results/logs/transformer-{model}-p{process}.log",
    wildcard_constraints:
        process=r"\d+",
    resources:
        gpu=1,
    params:
        request=lambda wildcards: PLAN.training_request(
            wildcards.model, int(wildcards.process)
        ),
    shell:
        "{MEASURE} measure --request {params.request:q} --out {output:q} --log {log:q}"
