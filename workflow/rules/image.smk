# The first stage where measurements run in a container: the image, built and proven, or found built.
# Its record is an input of every measuring rule, so that another image measures again.

if PLAN.image.contained:
    BUILD = PLAN.build_command()
    PINS = PLAN.image.pins()

    # Compute nodes may have no internet: on a cluster it is the login node's, unless told otherwise.
    if PLAN.config.image["build_on"] == "login":

        localrules:
            image,

    rule image:
        input:
            PLAN.image.sources,
        output:
            record="results/image.json",
            sbom=PLAN.image.bill,
        log:
            "results/logs/image.log",
        params:
            arguments=PLAN.image.arguments(),
        message:
            "Building the image, or finding it built"
        shell:
            "{BUILD} {params.arguments} {PINS} --out {output.record:q} --log {log:q} --quiet"
