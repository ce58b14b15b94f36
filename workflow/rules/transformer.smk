# The end-to-end comparison: one job a model and fresh process, all recipes interleaved in it.


rule transformer:
    input:
        PLAN.sources("transformer"),
        PLAN.image.record,
    output:
        "results/records/transformer/{model}-p{process}/index.json",
    log:
        "results/logs/transformer-{model}-p{process}.log",
    wildcard_constraints:
        process=r"\d+",
    resources:
        gpu=lambda wildcards: PLAN.gpus(wildcards.model),
    params:
        request=lambda wildcards: PLAN.training_request(
            wildcards.model, int(wildcards.process)
        ),
    message:
        "Training {wildcards.model}, process {wildcards.process}"
    shell:
        "{MEASURE} measure --request {params.request:q} --out {output:q} --log {log:q}"
