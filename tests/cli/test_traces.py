"""Traces of three families are read; what cannot be read is named with line and reason, and the rest goes on."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.cli.traces import (
    ENCODING,
    ERRORS,
    MAX_LINE,
    BadRow,
    TraceJob,
    UnknownColumns,
    physical_lines,
    read,
    team_name,
)
from schemas.subjects import token


def rows(text: str) -> list[TraceJob | BadRow]:
    return list(read(text.splitlines()))


def rows_of_file(content: bytes) -> list[TraceJob | BadRow]:
    return list(read(physical_lines(io.TextIOWrapper(io.BytesIO(content), ENCODING, ERRORS))))


HEADER = b"submit_s,duration_s,num_gpus,tenant\n"


def test_the_common_columns():
    (job,) = rows("submit_s,duration_s,num_gpus,tenant,model\n0.5,120,8,Vision Lab,dqn")
    assert (job.submit_s, job.duration_s, job.devices, job.team) == (0.5, 120.0, 8, "vision-lab")


def test_itp_columns():
    (job,) = rows("job_id,submission_time,duration,num_gpu\nabc,911907,709,32")
    assert (job.key, job.devices, job.team) == ("abc", 32, "replay")


def test_openb_pods_share_devices_and_last_from_scheduling_to_deletion():
    header = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
    )
    job, cpu_only, pending = rows(
        f"{header}\np1,6000,12288,1,460,V100M16|T4,LS,Running,10,110,20\n"
        "p2,1000,1,0,0,,LS,Running,10,20,10\np3,1,1,1,1000,,BE,Pending,10,50,"
    )
    assert (job.share_milli, job.duration_s, job.types, job.team) == (460, 90.0, ("V100M16", "T4"), "ls")
    assert isinstance(cpu_only, BadRow)
    assert pending.duration_s == 40.0


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("x,1,1,", "submit_s is 'x'"),
        ("0,,1,", "duration_s is ''"),
        ("0,1,0,", "no accelerator"),
        ("0,1,2.5,", "whole number"),
        ("0,1,99999,", "whole number"),
        ("0,nan,1,", "finite"),
        ("0,-3,1,", "not negative"),
        ("0", "expected 4 cells, got 1"),
        ("0,1,1,a,b", "expected 4 cells, got 5"),
        ('0,1,1,"a', "a quote is not closed on its line; it begins '0,1,1,\"a'"),
        ('0,1,1,"a"b', "it is no CSV"),
        ("0,1,1,a\0b", "a NUL character at column 8"),
        ("0,1,1,caf\udce9", "byte 0xe9 at column 10 is not UTF-8"),
        ("0,1,1," + "a" * 65536, "longer than 65536 characters; it begins '0,1,1,aaa"),
    ],
)
def test_a_bad_row_is_named_and_the_next_is_read(row, reason):
    bad, good = rows(f"submit_s,duration_s,num_gpus,tenant\n{row}\n1,1,1,a")
    assert bad.line == 2
    assert reason in bad.reason
    assert good.line == 3


def test_an_unclosed_quote_costs_its_own_row_only():
    bad, *good = rows_of_file(HEADER + b'0,1,1,"a\n' + b"0,1,1,a\n" * 20_000)
    assert (bad.line, [j.line for j in good]) == (2, list(range(3, 20_003)))
    assert all(isinstance(j, TraceJob) for j in good)


def test_a_name_too_long_for_a_client_key_is_a_bad_row():
    good, bad = rows(f"submit_s,duration_s,num_gpus,job_id\n0,1,1,{'a' * 240}\n0,1,1,{'b' * 241}")
    assert isinstance(good, TraceJob)
    assert "job_id is longer than 240 characters" in bad.reason


def test_a_quoted_cell_may_hold_commas_and_quotes():
    (job,) = rows('submit_s,duration_s,num_gpus,job_id\n0,1,1,"a, ""b"""')
    assert job.key == 'a, "b"'


def test_a_byte_order_mark_and_windows_line_ends_are_read():
    (job,) = rows_of_file(b"\xef\xbb\xbfsubmit_s,duration_s,num_gpus\r\n5,1,1\r\n")
    assert (job.line, job.submit_s) == (2, 5.0)


def test_bytes_that_are_not_utf_8_are_named():
    bad, good = rows_of_file(HEADER + "0,1,1,café\n".encode("latin-1") + "1,1,1,café\n".encode())
    assert bad == BadRow(2, "byte 0xe9 at column 10 is not UTF-8")
    assert good.line == 3


def test_blank_lines_are_skipped_and_counted():
    first, second = rows_of_file(b"\n" + HEADER + b"\n0,1,1,a\n  \n\n1,1,1,a")
    assert (first.line, second.line) == (4, 7)


@pytest.mark.parametrize("length", [MAX_LINE - 1, MAX_LINE, MAX_LINE + 1, 2 * MAX_LINE, 2 * MAX_LINE + 1, 1_000_000])
def test_a_line_is_one_line_however_long(length):
    row = b"0,1,1,".ljust(length, b"a")
    long, after = rows_of_file(HEADER + row + b"\n1,1,1,a\n")
    assert isinstance(long, BadRow if length > MAX_LINE else TraceJob)
    assert (long.line, after.line) == (2, 3)
    assert not isinstance(long, BadRow) or len(long.reason) < 150


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"\n \n", "the file is empty"),
        (b'submit_s,"duration_s\n0,1\n', "line 1, the header, cannot be read: a quote is not closed"),
        ("submit_s,duration_s\n0,1\n".encode("utf-16"), "byte 0xff at column 1 is not UTF-8"),
        (b"a" * 70_000, "longer than 65536"),
    ],
)
def test_a_header_that_cannot_be_read_says_why(content, reason):
    with pytest.raises(UnknownColumns, match=reason):
        rows_of_file(content)


def test_a_header_without_a_needed_column_says_which():
    with pytest.raises(UnknownColumns, match="number of devices"):
        rows("submit_s,duration_s\n0,1")


@given(st.text(max_size=200))
def test_any_tenant_becomes_a_valid_team(tenant):
    assert token(team_name(tenant)) == team_name(tenant)


@given(st.lists(st.text(max_size=30), max_size=8))
def test_no_text_crashes_the_reader(cells):
    row = ",".join(c.replace("\n", " ").replace("\r", " ").replace(",", " ").replace('"', "") for c in cells)
    for item in rows(f"submit_s,duration_s,num_gpus\n{row}"):
        assert isinstance(item, TraceJob | BadRow)


@given(st.binary(max_size=300))
def test_no_bytes_crash_the_reader_and_each_line_counts_once(content):
    items = rows_of_file(HEADER + content)
    lines = [item.line for item in items]
    assert lines == sorted(set(lines))
