"""The command line: every rule and every user calls ``python -m apexbench <command>``.

Each command imports its module when it runs, so that ``report`` never imports torch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import apexbench
from apexbench import broken_pipe, encoding
from apexbench.disk import a_file, a_folder, any_file
from apexbench.errors import UserError
from apexbench.image.cli import app as image
from apexbench.jobs.cli import measure, ranks

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="What NVIDIA Apex buys on your GPU, measured against what PyTorch already ships.",
)

app.add_typer(image, name="image")
Results = Annotated[Path, typer.Option("--results", callback=a_folder, help="The run's folder.")]


def _version(value: bool) -> None:
    if value:
        print(apexbench.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def doctor(
    results: Results = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what this machine has, what is missing, and what each missing thing would bring."""
    from rich.console import Console

    from apexbench import doctor as module

    raise typer.Exit(module.run(Console(), as_json, results))


@app.command(
    name="exec",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    add_help_option=False,
)
def execute(context: typer.Context) -> None:
    """Run a command in its runtime (native, docker, podman, apptainer), with the device locked."""
    from apexbench import execute as module

    raise typer.Exit(module.main(context.args))


@app.command(
    hidden=True,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    add_help_option=False,
)
def given(context: typer.Context) -> None:
    """Check what is given to Snakemake with --configfile and --config before it reads that."""
    from apexbench.config import given as module

    module.check(context.args)


@app.command(hidden=True)
def configuration(
    text: Annotated[str, typer.Option(help="The effective configuration, as JSON.")],
    out: Annotated[Path, typer.Option(callback=a_file, help="The JSON file to write.")],
) -> None:
    """Write the effective configuration of a run."""
    from apexbench import records

    records.write_text_atomically(out, text + "\n")


@app.command()
def machine(
    out: Annotated[Path, typer.Option(callback=a_file, help="The JSON file to write.")],
) -> None:
    """Write the description of this machine."""
    import json

    from apexbench import records
    from apexbench.machine.describe import describe

    records.write_text_atomically(out, json.dumps(describe(), indent=1, sort_keys=True) + "\n")


app.command()(measure)
app.command(hidden=True)(ranks)


@app.command()
def aggregate(
    results: Results = Path("results"),
    out: Annotated[
        Path | None, typer.Option(callback=a_folder, help="Folder of summary.csv and summary.json.")
    ] = None,
) -> None:
    """Merge a run's records into one table: summary.csv and summary.json."""
    from apexbench.report.summary import aggregate as merge

    merge(results, out or results)


@app.command()
def figures(
    results: Results = Path("results"),
    out: Annotated[
        Path | None, typer.Option(callback=a_folder, help="Folder of the figures.")
    ] = None,
) -> None:
    """Draw a run's figures."""
    from apexbench.report.render import figures as draw

    draw(results, out or results / "figures")


@app.command()
def report(
    records: Annotated[Path, typer.Option(callback=a_folder, help="The run's folder.")] = Path(
        "results"
    ),
    out: Annotated[
        Path | None, typer.Option(callback=a_folder, help="Where the report goes.")
    ] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(help="An index.json that should be there; its absence is shown."),
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(help="Another machine's report.html to link to."),
    ] = None,
    pdf: Annotated[bool, typer.Option(help="Typeset report.pdf too.")] = True,
) -> None:
    """Write a run's report.html and report.pdf from its records alone."""
    from apexbench.report.render import report as render

    render(
        records,
        out or records,
        [Path(path) for path in expect or []],
        [Path(path) for path in beside or []],
        pdf=pdf,
    )


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Run folders; the first is the baseline.")],
    html: Annotated[
        Path | None, typer.Option(callback=a_file, help="Also write the comparison as HTML.")
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(help="What counts as slower; by default 0.01 between runs, else 0.05."),
    ] = None,
    fail_on_regression: Annotated[
        bool, typer.Option(help="Exit with status 1 where the first run was better.")
    ] = False,
) -> None:
    """Compare runs: verdicts that changed, speed with intervals, what differs around them."""
    from rich.console import Console

    from apexbench.report import compare as module

    raise typer.Exit(module.run(folders, Console(), html, margin, fail_on_regression))


@app.command()
def reference(
    results: Results = Path("results"),
    out: Annotated[Path, typer.Option(callback=a_folder, help="The folder of references.")] = Path(
        "results/reference"
    ),
    force: Annotated[
        bool, typer.Option("--force", help="Replace a reference of another run.")
    ] = False,
) -> None:
    """Copy a finished run's records into the versioned reference of its machine."""
    from apexbench.jobs.reference import keep
    from apexbench.report.replacing import check

    replaced = check(results, out, force)
    print(keep(results, out))
    if replaced:
        print(replaced)


@app.command()
def recommend(
    results: Results = Path("results"),
    model: Annotated[str | None, typer.Option(help="One model of the run; all of them.")] = None,
    build_minutes: Annotated[
        float | None,
        typer.Option(min=0, help="What building Apex takes, where the run has no record of it."),
    ] = None,
) -> None:
    """Say how to train on this GPU: the fastest recipe, its code, and what Apex would cost."""
    from apexbench.report.recommend import recommend as advise

    print(advise(results, model, build_minutes))


@app.command(hidden=True)
def readme(
    records: Annotated[Path, typer.Option(callback=a_folder, help="The reference to show.")] = Path(
        "results/reference/nvidia-h200"
    ),
    out: Annotated[
        Path, typer.Option(callback=a_file, help="The file with the two markers.")
    ] = Path("README.md"),
) -> None:
    """Rewrite the README's part that is generated from a reference run."""
    from apexbench.report.readme import update

    update(out, records)


@app.command()
def retry(
    status: Annotated[str, typer.Option(help="Statuses to clear, separated by commas.")],
    results: Results = Path("results"),
) -> None:
    """Remove the records that hold cells of these statuses; the next run measures them again."""
    from apexbench.jobs.retry import clear

    print(clear(results, status))


@app.command()
def selfcheck(
    results: Results = Path("results"),
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    seconds: Annotated[
        float | None, typer.Option("--time", help="Seconds in all; what does not fit is named.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Parts: faults,waits,do_bench,pairs,slowdowns,repeat.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure every proof again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    inside: Annotated[bool, typer.Option("--inside", hidden=True)] = False,
) -> None:
    """Prove on this machine that the measurements can be believed; exit status 1 if not."""
    from apexbench.selfcheck import run

    parts = tuple(only.split(",")) if only else run.PARTS
    wanted = run.Wanted(results, device, seconds, parts, fresh, as_json)
    raise typer.Exit(run.main(wanted, inside))


def main() -> None:
    """Run the command line; a UserError is one sentence on stderr and exit status 2."""
    encoding.print_anything()
    try:
        app(prog_name="apexbench")
    except UserError as error:
        sys.exit(_say(str(error)))
    except OSError as error:
        if (known := any_file(error)) is None:
            raise
        sys.exit(_say(str(known)))


def _say(sentence: str) -> int:
    from apexbench.report.evidence import printable

    # Names from a damaged record may hold what a terminal obeys.
    broken_pipe.say(f"apexbench: {printable(sentence)}")
    return 2
