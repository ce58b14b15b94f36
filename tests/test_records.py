"""Records that are broken, foreign or huge: read whole, or named and refused."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import record_factory as factory
from apexbench import cli, records
from apexbench.errors import UserError
from apexbench.report import evidence, summary

WHOLE = records.dump(factory.optimizer()[0])
SAMPLE = str(json.loads(WHOLE)["cells"][0]["quantities"]["step_time"]["samples"][0])


@pytest.mark.parametrize(
    ("broken", "cause"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (WHOLE[: len(WHOLE) // 2].encode(), "is not a valid record"),
        (WHOLE.encode() + b"{", "Extra data"),
        (WHOLE.encode("utf-16"), "it is not UTF-8"),
        (WHOLE.replace("step_time", "step_tim\u00e9").encode("latin-1"), "it is not UTF-8"),
        (WHOLE.encode("utf-8-sig"), "BOM"),
        (WHOLE.replace('"schema_version":1', '"schema_version":2').encode(), "schema version 2"),
        (WHOLE.replace('"schema_version":1', '"schema_version":"1"').encode(), "version '1'"),
        (WHOLE.replace('"process":0', '"process":0,"process":1').encode(), "key 'process'"),
        (WHOLE.replace(SAMPLE, "NaN", 1).encode(), "it holds NaN"),
        (WHOLE.replace(SAMPLE, "-Infinity", 1).encode(), "it holds -Infinity"),
        (WHOLE.replace(SAMPLE, "1e999", 1).encode(), "it holds 1e999"),
        (WHOLE.replace(SAMPLE, "9" * 30, 1).encode(), "a number of 30 digits"),
        (WHOLE.replace(SAMPLE, "9" * 9999, 1).encode(), "a number of 9999 digits"),
        (WHOLE.replace(SAMPLE, "1.5", 1).encode(), "must be integer"),
        (WHOLE.replace(SAMPLE, "0", 1).encode(), "bigger than or equal to 1"),
        (b"[" * 100_000, "is not a valid record"),
        (b"[]", "is not an apexbench record"),
        (b"null", "is not an apexbench record"),
        (b'{"schema_version": 1}', "must contain"),
    ],
)  # fmt: skip
def test_a_broken_record_is_named_and_refused_with_the_remedy(tmp_path, broken, cause):
    path = tmp_path / "adamw-0.json"
    path.write_bytes(broken)
    with pytest.raises(UserError) as caught:
        records.read(path)
    assert str(caught.value).startswith(str(path))
    assert cause in str(caught.value)
    assert "delete that file and run the same command again" in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 40), st.binary(max_size=8))
def test_any_damage_is_a_whole_record_or_one_sentence(tmp_path_factory, at, cut, put):
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    data = WHOLE.encode()
    path.write_bytes(data[:at] + put + data[at + cut :])
    try:
        told = records.dump(records.read(path))
    except UserError as error:
        told = str(error) if str(path) in str(error) else ""
    assert told


def test_a_million_samples_are_read_and_one_more_is_refused(tmp_path):
    record = factory.optimizer()[0]
    for cell in record.cells:
        for quantity in cell.quantities.values():
            quantity.samples = quantity.samples[:1] * 1000
    quantity = record.cells[0].quantities["step_time"]
    quantity.samples = quantity.samples[:1] * 1_000_000
    factory.write_run(tmp_path, [record])
    begin = time.process_time()
    assert len(summary.summary(tmp_path)) > 0
    assert time.process_time() - begin < 15
    quantity.samples.append(1)
    with pytest.raises(ValueError, match="less than or equal to 1000000 items"):
        records.dump(record)


def test_a_record_under_another_s_name_is_never_counted_twice(tmp_path):
    factory.write_run(tmp_path, factory.optimizer())
    first, second = sorted((tmp_path / "records/optimizer").glob("[!i]*.json"))[:2]
    shutil.copy(first, second)
    with pytest.raises(UserError, match=f"{second.name} holds another record than its name says"):
        summary.summary(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"records": 5}', '{"records": [{}]}', "[" * 100_000]
)
def test_a_broken_index_is_named(tmp_path, text):
    path = tmp_path / "index.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"index\.json is not a valid index: delete it"):
        records.read_index(path)


def test_an_index_that_names_a_record_twice_is_refused(tmp_path):
    factory.write_run(tmp_path, factory.amp())
    path = tmp_path / "records/amp/index.json"
    index = json.loads(path.read_text())
    index["records"] *= 2
    path.write_text(json.dumps(index))
    with pytest.raises(UserError, match="is not a valid index"):
        records.read_index(path)


def test_a_record_of_the_index_that_lies_elsewhere_is_not_followed(tmp_path):
    factory.write_run(tmp_path, factory.amp())
    path = tmp_path / "records/amp/index.json"
    index = json.loads(path.read_text())
    outside = tmp_path / "outside.json"
    outside.write_text("secret")
    index["records"] = [{"file": str(Path("../..") / outside.name)}]
    path.write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"amp/outside\.json cannot be read"):
        records.read_index(path)


@pytest.mark.parametrize(
    "named",
    [
        ["../victim/records/amp/index.json"],
        ["/etc/index.json"],
        ["records/amp/other.json"],
        ["records/a\u0000/index.json"],
        [1],
        None,
    ],
)
def test_a_configuration_names_indexes_of_its_own_run_only(tmp_path, named):
    (tmp_path / "config.json").write_text(json.dumps({"indexes": named}))
    with pytest.raises(UserError, match=r"config\.json names other files"):
        list(records.indexes(tmp_path))


def test_an_index_is_outdated_once_a_record_is_gone_or_written_to(tmp_path):
    record = tmp_path / "a-1.json"
    record.write_text("{}")
    index = tmp_path / "index.json"
    assert not records.outdated(index)
    index.write_text(json.dumps({"records": [{"file": record.name}]}))
    assert not records.outdated(index)
    later = index.stat().st_mtime_ns + 1
    os.utime(record, ns=(later, later))
    assert records.outdated(index)
    record.unlink()
    assert records.outdated(index)


def test_a_terminal_obeys_no_name_in_a_message(capsys):
    assert cli._say("a \x1b[31mred\x1b]0;owned\x07 \u202ename") == 2
    assert capsys.readouterr().err == "apexbench: a \ufffd[31mred\ufffd]0;owned\ufffd \ufffdname\n"


def test_a_key_twice_among_many_is_found_at_once():
    text = json.dumps({f"k{number}": 1 for number in range(200_000)})[:-1] + ', "z": 1, "z": 2}'
    begin = time.process_time()
    with pytest.raises(ValueError, match="the key 'z' stands in it twice"):
        records.load_json(text)
    assert time.process_time() - begin < 5


@pytest.mark.parametrize("name", ["config.json", "machine.json"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_what_is_no_file_beside_the_records_is_named(tmp_path, name, make):
    factory.write_run(tmp_path, factory.amp())
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    with pytest.raises(UserError, match=f"{name} is not a regular file: delete it"):
        evidence.load(tmp_path)
