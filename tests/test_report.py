"""The report as a file: what is written comes back, and nothing that was written elsewhere is trusted."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import pickle
import resource
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nbcompile import Report, ReportError, UsageError, load_report
from nbcompile.report import FILE_ENDING, MIME_TYPE, SCHEMA, Group, Rest, Strategy

from .reports import HOSTILE, sample_report, several_ranks, tuned_report

MINIMAL_GROUP = {"path": "layers", "class_name": "Block", "instances": 2}


def document(**fields: Any) -> dict[str, Any]:
    return {"schema": 1, **fields}


def refusal(data: Any) -> str:
    """Why some data, given as JSON text, is refused."""
    text = data if isinstance(data, (str, bytes)) else json.dumps(data)
    with pytest.raises(ReportError) as caught:
        Report.from_json(text)
    return str(caught.value)


# -- there and back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("report", [Report(), sample_report(), tuned_report()])
def test_json_there_and_back(report: Report) -> None:
    # GIVEN a report WHEN it is written as JSON, indented or not, and read THEN it is equal
    assert Report.from_json(report.to_json()) == report
    assert Report.from_json(report.to_json(indent=2)) == report
    assert Report.from_json(report.to_json().encode()) == report
    assert Report.from_dict(report.to_dict()) == report


def test_sample_has_every_field_filled() -> None:
    # GIVEN the report that the round trip uses WHEN its fields are held against their defaults THEN all differ
    report = sample_report()
    for thing in (report, report.groups[0], report.rest[1], report.strategies["regional"], report.timeline[0]):
        # equal to their default in a report without mistakes; a tuning's is another
        unfilled = {"schema", "failure", "notes", "start", "progress", "tuning", "ranks"}
        for field in dataclasses.fields(thing):
            value = getattr(thing, field.name)
            assert field.name in unfilled or value not in (None, "", 0, [], {}), field.name


def test_ranks_there_and_back() -> None:
    report = several_ranks()
    assert Report.from_json(report.to_json()) == report


def test_stragglers_and_who_compiled_again_alone() -> None:
    # GIVEN three ranks that all met another size, of which one met another dtype too, and one compiled longer
    report = several_ranks()
    # WHEN they are held against each other THEN those two are named, and what all did is nobody's alone
    assert [rank.rank for rank in report.stragglers()] == [2]
    assert [(rank.rank, again.block) for rank, again in report.recompiled_alone()] == [(1, "layers.3")]
    text = report.to_text()
    assert "rank 2 on b compiled for 9.00 s, clearly longer than the others: they waited" in text
    assert "rank 1 on a compiled again while others did not, and they waited (layers.3: x changed its dtype)" in text
    assert "backward's part" in text


@pytest.mark.parametrize("slow", [6.5, None])
def test_no_straggler(slow: Any) -> None:
    # GIVEN a rank that is hardly slower, or of which no time is known THEN none straggles
    assert several_ranks(slow=slow).stragglers() == []


def test_one_rank_has_nothing_to_be_held_against() -> None:
    report = several_ranks()
    del report.ranks[:2]
    assert (report.stragglers(), report.recompiled_alone()) == ([], [])


def test_file_there_and_back(tmp_path: Path) -> None:
    # GIVEN a report WHEN it is saved and loaded THEN it is equal
    report = sample_report()
    assert load_report(report.save(tmp_path / "run")) == report


@pytest.mark.parametrize("text", [HOSTILE, "\udc80", "Größe 木\0", "\U0001f600", "\\ud800"])
def test_any_text_there_and_back(text: str, tmp_path: Path) -> None:
    # GIVEN text that UTF-8 cannot hold, such as a file name that is no text WHEN it is saved THEN it can be loaded
    report = Report(notes=[text], environment={text: [text]}, groups=[Group(text, text, 1)])
    assert load_report(report.save(tmp_path / "run")) == report


def test_absent_figures_stay_absent() -> None:
    # GIVEN a strategy that was not measured WHEN it is written THEN its figures are null, never zero
    data = Report(strategies={"full": Strategy()}).to_dict()["strategies"]["full"]
    names = (
        "cold_seconds",
        "steady_seconds",
        "steady_spread",
        "peak_bytes",
        "max_abs_diff",
        "break_even_calls",
        "graphs",
    )
    assert [data[name] for name in names] == [None] * 7
    assert Report.from_dict(document(strategies={"full": data})).strategies["full"] == Strategy()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_number_that_json_cannot_hold_is_absent(value: float) -> None:
    # GIVEN a figure that is no finite number WHEN it is written THEN it is null, and the text is valid JSON
    report = Report(strategies={"full": Strategy(max_abs_diff=value)}, environment={"x": [value]})
    data = json.loads(report.to_json(), parse_constant=pytest.fail)
    assert data["strategies"]["full"]["max_abs_diff"] is None
    assert data["environment"] == {"x": [None]}


def test_settings_that_are_no_plain_data() -> None:
    # GIVEN tuples, paths and keys of other types in the free fields WHEN they are written THEN each has its JSON form
    report = Report(settings={"a": (1, True), "b": Path("x"), 3: None})  # type: ignore[dict-item]
    assert report.to_dict()["settings"] == {"a": [1, True], "b": "x", "3": None}


def test_data_is_a_copy() -> None:
    # GIVEN a report's data WHEN it is changed THEN the report is not
    report = sample_report()
    report.to_dict()["groups"][0]["phases"].clear()
    assert report == sample_report()


def test_names_of_the_format() -> None:
    # GIVEN the names that other programs rely on WHEN they are read THEN they are these
    assert (SCHEMA, MIME_TYPE, FILE_ENDING) == (1, "application/vnd.nbcompile.v1+json", ".nbcompile.json")
    assert Report().to_dict()["schema"] == 1


# -- what is ignored, and what is filled in ----------------------------------------------------------------------------


def test_unknown_fields_are_ignored() -> None:
    # GIVEN fields of a later version, at every depth WHEN the report is read THEN it is as if they were not there
    report = sample_report()
    data = report.to_dict()
    data["later"] = {"deep": [1]}
    data["groups"][0]["later"] = 1
    data["groups"][0]["variants"][0]["later"] = None
    data["strategies"]["full"]["later"] = []
    data["timeline"][0]["later"] = "x"
    assert Report.from_dict(data) == report


def test_missing_fields_have_their_defaults() -> None:
    # GIVEN a document with no more than what must be there WHEN it is read THEN all else has its default
    report = Report.from_dict(document(groups=[MINIMAL_GROUP], strategies={"eager": {}}))
    assert report == Report(groups=[Group("layers", "Block", 2)], strategies={"eager": Strategy()})


def test_whole_number_where_a_fraction_is_expected() -> None:
    # GIVEN a time written without a fraction WHEN it is read THEN it is a float
    value = Report.from_dict(document(strategies={"full": {"cold_seconds": 3}})).strategies["full"].cold_seconds
    assert (type(value), value) == (float, 3.0)


def test_huge_whole_number_where_one_is_expected() -> None:
    # GIVEN a count of four hundred digits WHEN it is read THEN it is that count: such numbers have no limit here
    report = Report.from_json('{"schema": 1, "strategies": {"x": {"peak_bytes": 1' + "0" * 400 + "}}}")
    assert report.strategies["x"].peak_bytes == 10**400


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [2, 0, -1, "1", None, True, 1.5, [], {}, "2" * 1000])
def test_another_schema(schema: Any) -> None:
    # GIVEN another schema WHEN the report is read THEN the error says which, cut short, and which can be read
    assert refusal({"schema": schema}) == (
        f"this report has schema {str(schema)[:40]!r}; this version of nbcompile reads schema 1. "
        "A newer nbcompile may be able to read it."
    )


def test_no_schema() -> None:
    # GIVEN an object that names no schema WHEN it is read THEN it is refused like another one
    assert refusal({}).startswith("this report has schema 'None'")


@pytest.mark.parametrize(("text", "kind"), [("[]", "list"), ("null", "NoneType"), ("5", "int"), ('"{}"', "str")])
def test_something_that_is_no_object(text: str, kind: str) -> None:
    # GIVEN JSON that is no object WHEN it is read THEN the error says what it is
    assert refusal(text) == f"this is no report: expected a JSON object, found {kind}"


@pytest.mark.parametrize(
    "text", ["", " ", "{", "nonsense", "{'schema': 1}", '{"schema": 1,}', '{"schema": 1} x', b"\xff\xfe\x00", b"\x80"]
)
def test_text_that_is_no_json(text: str | bytes) -> None:
    # GIVEN text that is no JSON, or bytes that are no text WHEN it is read THEN the error says so
    assert refusal(text).startswith("this report cannot be read: it is not valid JSON (")


def test_every_truncated_file() -> None:
    # GIVEN a report whose end is missing WHEN it is read THEN it is refused, wherever it was cut
    text = sample_report().to_json()
    for end in range(0, len(text), 5):
        refusal(text[:end])


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have(number: str) -> None:
    # GIVEN what JavaScript and Python write for numbers without a value WHEN it is read THEN the error names it
    text = f'{{"schema": 1, "strategies": {{"full": {{"cold_seconds": {number}}}}}}}'
    assert refusal(text) == f"this report cannot be read: it is not valid JSON ({number} is no JSON number)"


@pytest.mark.parametrize("number", ["1e999", "-1e999"])
def test_number_beyond_the_largest(number: str) -> None:
    # GIVEN a number that Python reads as infinite WHEN it is read THEN the error says where it is
    text = f'{{"schema": 1, "strategies": {{"full": {{"cold_seconds": {number}}}}}}}'
    assert refusal(text) == "report.strategies.full.cold_seconds: the number is not finite"


def test_number_beyond_the_largest_in_a_free_field() -> None:
    # GIVEN such a number where any data may stand WHEN it is read THEN it is refused too: it could not be written again
    text = '{"schema": 1, "environment": {"a": {"b": [1, 1e999]}}}'
    assert refusal(text) == "report.environment.a: the number is not finite"


def test_whole_number_too_large_for_a_fraction() -> None:
    # GIVEN four hundred digits where a time is expected WHEN they are read THEN the error says where they are
    text = '{"schema": 1, "strategies": {"full": {"cold_seconds": 1' + "0" * 400 + "}}}"
    assert refusal(text) == "report.strategies.full.cold_seconds: the number is too large"


def test_number_of_endless_digits() -> None:
    # GIVEN more digits than Python converts WHEN they are read THEN the text is refused
    assert refusal('{"schema": 1, "notes": ' + "9" * 10_000 + "}").startswith("this report cannot be read")


@pytest.mark.parametrize("depth", [101, 900, 5_000, 1_000_000])
@pytest.mark.parametrize("brackets", ["[]", ("{" + '"a":', "}")], ids=["lists", "objects"])
def test_deeply_nested(depth: int, brackets: Any) -> None:
    # GIVEN data nested deeper than anyone would write WHEN it is read THEN it is refused in words
    start, end = brackets
    message = refusal(f'{{"schema": 1, "environment": {{"a": {start * depth}1{end * depth}}}}}')
    assert "nested" in message


@pytest.mark.parametrize("depth", [1, 100])
def test_nested_as_far_as_can_be(depth: int) -> None:
    # GIVEN data that is nested less WHEN it is read THEN it can also be written again
    text = f'{{"schema": 1, "environment": {{"a": {"[" * depth}1{"]" * depth}}}}}'
    assert Report.from_json(Report.from_json(text).to_json()) == Report.from_json(text)


WRONG = [
    ({"groups": {}}, "report.groups: expected a list, found dict"),
    ({"groups": [5]}, "report.groups[0]: expected an object, found int"),
    ({"groups": [None]}, "report.groups[0]: expected an object, found NoneType"),
    ({"groups": [MINIMAL_GROUP, {"path": "x"}]}, "report.groups[1]: the field 'class_name' is missing"),
    ({"groups": [{**MINIMAL_GROUP, "instances": "2"}]}, "report.groups[0].instances: expected int, found str"),
    ({"groups": [{**MINIMAL_GROUP, "instances": True}]}, "report.groups[0].instances: expected int, found bool"),
    ({"groups": [{**MINIMAL_GROUP, "instances": 2.0}]}, "report.groups[0].instances: expected int, found float"),
    ({"groups": [{**MINIMAL_GROUP, "instances": None}]}, "report.groups[0].instances: expected int, found NoneType"),
    ({"groups": [{**MINIMAL_GROUP, "path": 1}]}, "report.groups[0].path: expected str, found int"),
    ({"groups": [{**MINIMAL_GROUP, "blocks": "ab"}]}, "report.groups[0].blocks: expected a list, found str"),
    ({"groups": [{**MINIMAL_GROUP, "blocks": [1]}]}, "report.groups[0].blocks[0]: expected str, found int"),
    ({"groups": [{**MINIMAL_GROUP, "phases": {"x": "1"}}]}, "report.groups[0].phases.x: expected float, found str"),
    ({"groups": [{**MINIMAL_GROUP, "phases": {"x": True}}]}, "report.groups[0].phases.x: expected float, found bool"),
    (
        {"groups": [{**MINIMAL_GROUP, "variants": [{"name": "a"}]}]},
        "report.groups[0].variants[0]: the field 'instances' is missing",
    ),
    (
        {"rest": [{"path": "", "class_name": "", "decision": "", "reason": "", "compiled": 1}]},
        "report.rest[0].compiled: expected bool, found int",
    ),
    ({"strategies": []}, "report.strategies: expected an object, found list"),
    ({"strategies": {"full": None}}, "report.strategies.full: expected an object, found NoneType"),
    ({"strategies": {"full": {"graphs": False}}}, "report.strategies.full.graphs: expected int, found bool"),
    ({"strategies": {"full": {"cold_seconds": "3"}}}, "report.strategies.full.cold_seconds: expected float, found str"),
    ({"strategies": {"full": {"peak_bytes": 1.5}}}, "report.strategies.full.peak_bytes: expected int, found float"),
    ({"strategies": {"x" * 99: 5}}, f"report.strategies.{'x' * 40}: expected an object, found int"),
    ({"timeline": [{}]}, "report.timeline[0]: the field 'region' is missing"),
    ({"environment": []}, "report.environment: expected an object, found list"),
    ({"created": 5}, "report.created: expected str, found int"),
    ({"notes": [None]}, "report.notes[0]: expected str, found NoneType"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG, ids=[message for _, message in WRONG])
def test_field_of_the_wrong_type(fields: dict[str, Any], message: str) -> None:
    # GIVEN one field of the wrong type WHEN the report is read THEN the error says where it is and what is expected
    assert refusal(document(**fields)) == message


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything in some data."""
    yield path
    for key, item in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from places(item, (*path, key))


def replaced(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The data with something else at a path."""
    if not path:
        return value
    copy = data.copy()
    copy[path[0]] = replaced(copy[path[0]], path[1:], value)
    return copy


@pytest.mark.parametrize(
    "value", [None, True, 5, -1.5, "text", [], {}, [None], {"a": None}, 10**400], ids=lambda value: repr(value)[:9]
)
def test_anything_anywhere(value: Any) -> None:
    # GIVEN a good document with something else in one place, for each place
    data = sample_report().to_dict()
    for path in places(data):
        changed = replaced(data, path, value)
        # WHEN it is read THEN it is refused in words, or it is a report that can be written and read again
        try:
            report = Report.from_dict(changed)
        except ReportError:
            continue
        assert Report.from_json(report.to_json()) == report


class Payload:
    """Pickled, it creates a file when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, ("canary", "w")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_of_a_pickle_is_run(protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a pickle that creates a file when it is unpickled
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(Payload(), protocol)
    pickle.loads(pickled).close()
    (tmp_path / "canary").unlink()
    # WHEN it is read as a report THEN it is refused, and no file was created
    refusal(pickled)
    assert list(tmp_path.iterdir()) == []


def test_nothing_of_a_text_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN text that would create a file if it were evaluated, under names that some readers of JSON act upon
    monkeypatch.chdir(tmp_path)
    code = "__import__('pathlib').Path('canary').touch()"
    tag = {"__reduce__": code, "__class__": code, "py/object": code, "$ref": "file:///etc/passwd"}
    # WHEN it stands wherever text may stand, is read and shown
    report = Report.from_dict(document(notes=[code], environment={code: tag}, groups=[{**MINIMAL_GROUP, "path": code}]))
    shown = repr(report) + report.to_text()
    # THEN it is text, and no file was created
    assert (report.groups[0].path, report.environment) == (code, {code: tag})
    assert code in shown
    assert list(tmp_path.iterdir()) == []


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("run", "run.nbcompile.json"),
        ("run.json", "run.json"),
        ("run.nbcompile.json", "run.nbcompile.json"),
        ("run.v1.2", "run.v1.2.nbcompile.json"),
    ],
)
def test_name_of_the_file(name: str, written: str, tmp_path: Path) -> None:
    # GIVEN a name with or without an ending WHEN a report is saved THEN the path that was written is returned
    assert Report().save(tmp_path / name) == tmp_path / written
    assert Report().save(str(tmp_path / name), overwrite=True) == tmp_path / written
    assert [file.name for file in tmp_path.iterdir()] == [written]


def test_saving_never_overwrites_unasked(tmp_path: Path) -> None:
    # GIVEN a file WHEN a report is saved under its name THEN the error names it and the remedy, and it is as it was
    file = tmp_path / "run.json"
    file.write_text("precious")
    with pytest.raises(UsageError) as caught:
        sample_report().save(file)
    assert str(caught.value) == f"{file} exists already; pass overwrite=True to replace it, or choose another name"
    assert file.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [file]


def test_saving_overwrites_when_asked(tmp_path: Path) -> None:
    # GIVEN a file WHEN a report is saved over it on purpose THEN it holds the report
    file = tmp_path / "run.json"
    file.write_text("old" * 10_000)
    sample_report().save(file, overwrite=True)
    assert load_report(file) == sample_report()
    assert list(tmp_path.iterdir()) == [file]


def test_page_never_overwrites_unasked(tmp_path: Path) -> None:
    # GIVEN a file WHEN a report is written over it as a page THEN it is refused in the same way, and done when asked
    file = tmp_path / "run.html"
    file.write_text("precious")
    with pytest.raises(UsageError, match="exists already"):
        sample_report().to_html(file)
    assert file.read_text() == "precious"
    assert sample_report().to_html(file, overwrite=True) == file
    assert file.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@contextlib.contextmanager
def full_disk(bytes_left: int) -> Iterator[None]:
    """No file of this process can grow past a size, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_left, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("bytes_left", [0, 4096])
def test_failed_write_leaves_no_file(bytes_left: int, tmp_path: Path) -> None:
    # GIVEN a disk on which there is no room for the file
    report = Report(notes=["x" * 1_000_000])
    # WHEN a report is saved THEN the error is the system's, and there is neither the file nor a part of it
    with full_disk(bytes_left), pytest.raises(OSError, match=r"File too large|No space"):
        report.save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    # GIVEN a saved report and a full disk WHEN it is to be replaced THEN the old one is whole, and alone
    file = sample_report().save(tmp_path / "run")
    with full_disk(4096), pytest.raises(OSError, match=r"File too large|No space"):
        Report(notes=["x" * 1_000_000]).save(file, overwrite=True)
    assert load_report(file) == sample_report()
    assert list(tmp_path.iterdir()) == [file]


def test_name_of_a_folder(tmp_path: Path) -> None:
    # GIVEN a folder that has the file's name WHEN a report is saved over it THEN it fails and leaves no part of a file
    folder = tmp_path / "run.json"
    folder.mkdir()
    with pytest.raises(OSError, match=r"run\.json"):
        Report().save(folder, overwrite=True)
    assert list(tmp_path.iterdir()) == [folder]
    assert list(folder.iterdir()) == []


def test_folder_that_does_not_exist(tmp_path: Path) -> None:
    # GIVEN no such folder WHEN a report is saved into it THEN the error is the system's, and no folder is made
    with pytest.raises(FileNotFoundError):
        Report().save(tmp_path / "missing" / "run")
    assert list(tmp_path.iterdir()) == []


def test_file_is_as_readable_as_any_other(tmp_path: Path) -> None:
    # GIVEN the user's mask WHEN a report is saved THEN its file has the permissions of a file made by open()
    mask = os.umask(0o027)
    try:
        file = Report().save(tmp_path / "run")
        assert stat.S_IMODE(file.stat().st_mode) == 0o640
        assert os.umask(0o027) == 0o027, "the mask was changed"
    finally:
        os.umask(mask)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is not valid JSON"),
        (b"{}", "this report has schema 'None'"),
        (b'{"schema": 1, "groups": 5}', "report.groups: expected a list, found int"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_errors_of_loading_name_the_file(content: bytes, message: str, tmp_path: Path) -> None:
    # GIVEN a file that is no report WHEN it is loaded THEN the error begins with its name and says what is wrong
    file = tmp_path / "other.nbcompile.json"
    file.write_bytes(content)
    with pytest.raises(ReportError) as caught:
        load_report(str(file))
    assert str(caught.value).startswith(f"{file}: ")
    assert message in str(caught.value)


def test_file_that_is_not_there(tmp_path: Path) -> None:
    # GIVEN no such file WHEN it is loaded THEN the error is the system's, and names it
    with pytest.raises(FileNotFoundError, match=r"missing\.json"):
        load_report(tmp_path / "missing.json")


# -- in one line -------------------------------------------------------------------------------------------------------


def test_representation() -> None:
    # GIVEN a report WHEN it is shown in one line THEN that names the model, what ran compiled, and the strategies
    report = sample_report()
    assert repr(report) == (
        "<Report of SampleForCausalLM: 26 of 30 blocks compiled, strategies: regional, eager, full, hierarchical>"
    )
    assert repr(Report()) == "<Report of ?: 0 of 0 blocks compiled>"


def test_parts_are_plain_data() -> None:
    # GIVEN two equal parts WHEN they are compared THEN they are equal; no list of one is that of the other
    assert Rest("a", "B", "eager", "c") == Rest("a", "B", "eager", "c")
    assert Group("a", "B", 1).variants is not Group("a", "B", 1).variants
