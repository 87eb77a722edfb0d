"""Traces of three families are read; what cannot be read is named with line and reason, and the rest goes on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.cli.traces import BadRow, TraceJob, UnknownColumns, read, team_name
from schemas.subjects import token


def rows(text: str) -> list[TraceJob | BadRow]:
    return list(read(text.splitlines()))


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
        ("0", "num_gpus is ''"),
    ],
)
def test_a_bad_row_is_named_and_the_next_is_read(row, reason):
    bad, good = rows(f"submit_s,duration_s,num_gpus,tenant\n{row}\n1,1,1,a")
    assert bad.line == 2
    assert reason in bad.reason
    assert good.line == 3


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
