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
        nodes=lambda wildcards: PLAN.nodes(wildcards.model),
        # Several nodes are one task each, which the job starts with srun; see docs/slurm.md.
        tasks=lambda wildcards: PLAN.tasks(wildcards.model),
        mpi=lambda wildcards: "srun" if PLAN.tasks(wildcards.model) else None,
        tasks_per_gpu=lambda wildcards: 0 if PLAN.tasks(wildcards.model) else None,
    params:
        measure=lambda wildcards: PLAN.training_command(wildcards.model),
        request=lambda wildcards: PLAN.training_request(
            wildcards.model, int(wildcards.process)
        ),
    message:
        "Training {wildcards.model}, process {wildcards.process}"
    shell:
        "{params.measure} measure --request {params.request:q} --out {output:q} --log {log:q}"
