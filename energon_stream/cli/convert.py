"""``energon-stream convert``: write a dataset of another format as tars with their metadata."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from energon_stream.cli.options import (
    engine_options,
    flag,
    json_option,
    new_dataset_options,
    option,
    show_size,
    source_storage_option,
    written_shards_options,
)
from energon_stream.cli.terminal import echo, emit
from energon_stream.errors import ConfigError
from energon_stream.printable import counted
from energon_stream.progress import Progress
from energon_stream.write.sources.detect import KINDS

if TYPE_CHECKING:
    from energon_stream.engine.tasks import Part, TaskEngine
    from energon_stream.write.convert import ConvertReport
    from energon_stream.write.convert_plan import ConvertPlan

_OF_WRITING = ("check", "split_ratio", "split_patterns", "storage_options")
_SHOWN = 60  # characters of a text in a preview


@click.command()
@click.argument("source")
@click.argument("destination")
@option("--from", "kind", type=click.Choice([*KINDS]))
@option("--map", "columns", multiple=True, metavar="COLUMN=PART")
@option("--file", "files", multiple=True, metavar="COLUMN")
@option("--files-root", metavar="PATH")
@option("--key", metavar="COLUMN")
@option("--source-split", "split", metavar="NAME")
@option("--source-config", "config", metavar="NAME")
@option("--classes/--no-classes", default=None)
@option("--shuffle/--no-shuffle", default=True)
@flag("--trust")
@written_shards_options
@flag("--dry-run")
@json_option
@engine_options()
@source_storage_option
@new_dataset_options
def convert(
    source: str,
    destination: str,
    columns: tuple[str, ...],
    sample_type: str | None,
    field_map: str | None,
    source_storage_options: dict[str, Any] | None,
    dry_run: bool,
    engine: TaskEngine,
    part: Part | None,
    progress: bool | None,
    classes: bool | None,
    **options: Any,
) -> None:
    """Write a dataset of another format to DESTINATION, ready for training.

    SOURCE is a folder of MosaicML MDS shards, LitData chunks, Parquet files, a saved dataset of Hugging Face
    or plain files; a Parquet, CSV, TSV, JSON or JSONL file; hf://datasets/OWNER/NAME on Hugging Face's hub.
    Both are local, s3://… or any other fsspec URL.

    A conversion that was stopped goes on when the command is run again. With --part, several commands share
    the work; run it once more without that option when all are done.
    """
    from energon_stream.write.convert import convert_dataset
    from energon_stream.write.convert_plan import plan_conversion

    options["columns"] = dict(map(_pair, columns))
    if classes is not None:
        options["classes"] = classes
    writing = {name: options.pop(name) for name in _OF_WRITING}
    if dry_run or sample_type:
        plan = plan_conversion(source, source_storage_options=source_storage_options, **options)
        document = _document(plan, sample_type, field_map)
        if dry_run:
            found = _plan(plan, document, is_guess=sample_type is None and plan.rows != len(plan.preview))
            emit(found, lambda: _show_plan(found))
            return
        writing["dataset_yaml"] = document
    elif field_map is not None:
        raise ConfigError("--field-map needs --sample-type", hint="Give both, or neither.")
    options |= {"source_storage_options": source_storage_options, "engine": engine, "part": part}
    with Progress(unit="part", enabled=progress) as shown:
        report = convert_dataset(source, destination, progress=shown.reach, **writing, **options)
    if report is None:
        done = f"Part {part} is complete. Run the command without --part when all parts are."
        emit({"part": part}, lambda: echo(done))
        return
    equal = report.rows in (None, report.samples)
    emit({**asdict(report), "equal": equal}, lambda: _show(report))


def _pair(item: str) -> tuple[str, str]:
    column, equals, part = item.rpartition("=")
    if not equals or not column or not part:
        raise ConfigError(f"--map {item!r:.80} is not COLUMN=PART", hint="For example --map image=jpg.")
    return column, part


def _document(plan: ConvertPlan, sample_type: str | None, field_map: str | None) -> dict[str, Any]:
    from energon_stream.cli.dataset_yaml_wizard import chosen_dataset_yaml
    from energon_stream.write.guess import guess_dataset_yaml

    if sample_type is None:
        return dict(guess_dataset_yaml({tuple(sorted(_parts_of(sample))) for sample in plan.preview}))
    return chosen_dataset_yaml(sample_type, field_map, plan.part_names)


def _parts_of(sample: dict[str, Any]) -> list[str]:
    return [name for name in sample if not name.startswith("__")]


def _show_plan(found: dict[str, Any]) -> None:
    from energon_stream.index.yaml_io import dump_yaml

    rows = "rows that are counted on reading" if found["rows"] is None else counted(found["rows"], "row")
    of = f"{counted(found['sections'], 'section')}, for {counted(found['parts'], 'part')} of the new dataset"
    echo(f"{found['kind']}: {rows} in {of}")
    for part in found["columns"]:
        echo(f"  {part}")
    if found["left_out"]:
        echo(f"  left out: {', '.join(found['left_out'])}")
    for sample in found["preview"]:
        key, *parts = sample.items()
        echo(key[1])
        for name, content in parts:
            echo(f"  {name:<12} {content}")
    of = ", if all samples have the parts of these" if found["dataset_yaml_is_guess"] else ""
    click.echo(f"dataset.yaml{of}:")
    for line in dump_yaml(found["dataset_yaml"]).decode().splitlines():
        echo(f"  {line}")


def _plan(plan: ConvertPlan, document: dict[str, Any], is_guess: bool) -> dict[str, Any]:
    samples = [
        {"__key__": sample["__key__"], **{name: _content(sample[name]) for name in _parts_of(sample)}}
        for sample in plan.preview
    ]
    return {
        "kind": plan.source.kind,
        "rows": plan.rows,
        "sections": len(plan.sections),
        "parts": plan.num_parts,
        "columns": [str(part) for part in plan.columns.parts or ()],
        "left_out": plan.left_out,
        "preview": samples,
        "dataset_yaml": document,
        "dataset_yaml_is_guess": is_guess,
    }


def _content(data: Any) -> str:
    """Return a text as it is, and the size of anything else."""
    if not isinstance(data, bytes):
        return repr(data)
    text = data.decode(errors="surrogateescape")
    if not text.isprintable():  # surrogates are not
        return show_size(len(data))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({show_size(len(data))})"


def _show(report: ConvertReport) -> None:
    from energon_stream.write.finish import CRUDE

    rows = "an unknown number of rows" if report.rows is None else counted(report.rows, "row")
    of = f"{counted(report.sections, 'section')} ({report.kind}), {report.rows_read} read in this run"
    echo(f"Source:    {rows} in {of}")
    equal = "" if report.rows is None else ", as many as rows"
    written = f"{counted(report.samples, 'sample')} in {counted(report.shards, 'tar')}"
    echo(f"Written:   {written}, {show_size(report.size)}{equal}")
    checked = counted(report.samples_checked, "sample") + " in this run" * (
        report.samples_checked < report.samples
    )
    right = f"{checked}, all with the checksums of what was written"
    echo(f"Read back: {right if report.samples_checked else 'nothing in this run'}")
    echo(f"Checksum:  {report.digest} of all samples")
    echo(f"Split:     {', '.join(f'{name} {count}' for name, count in report.split.items())}")
    if report.left_out:
        echo(f"Left out:  {', '.join(report.left_out)}")
    kind = (report.dataset_yaml or {}).get("sample_type", report.dataset_yaml) or {}
    echo(f"Samples:   {kind.get('__class__', 'no dataset.yaml')}")
    if report.dataset_yaml == CRUDE and len(report.shapes) > 1:
        shapes = [f"{count} have {parts}" for parts, count in report.shapes.items()]
        echo(f"Parts:     {'; '.join(shapes[:6])}{'; …' if shapes[6:] else ''}")
