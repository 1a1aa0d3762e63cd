"""`quire simulate`, from the words of the command to files."""

import json

import pytest

from ops.cli.main import main

QUICK = ["simulate", "--requests", "40", "--rate", "30", "--output", "4:8"]


def test_every_combination_is_tried(tmp_path, capsys) -> None:
    out, plots = tmp_path / "out.json", tmp_path / "plots"
    words = [*QUICK, "--workers", "1,2", "--pool-blocks", "64,128", "--step-tokens", "128,512"]
    assert main([*words, "--out", str(out), "--plots", str(plots)]) == 0
    found = json.loads(out.read_text())["results"]
    assert (found["load"]["kind"], found["load"]["rate"]) == ("poisson", 30)
    runs = found["runs"]
    assert len({run["name"] for run in runs}) == len(runs) == 8
    assert all(run["requests"] == 40 for run in runs)
    shown = capsys.readouterr().out
    assert "2 workers, 128 blocks, 512 a step" in shown
    drawn = {path.name: path.read_bytes() for path in plots.glob("*.svg")}
    assert len(drawn) == 5
    assert main([*words, "--plots", str(plots)]) == 0
    assert drawn == {path.name: path.read_bytes() for path in plots.glob("*.svg")}


def test_host_memory_is_tried(tmp_path) -> None:
    out = tmp_path / "out.json"
    words = ["--arrivals", "chats", "--pool-blocks", "80", "--host-blocks", "0,1000", "--swap-us", "50"]
    assert main([*QUICK, *words, "--out", str(out)]) == 0
    without, swapping = json.loads(out.read_text())["results"]["runs"]
    assert (without["name"], swapping["name"]) == ("0 on the host", "1000 on the host")
    assert swapping["setting"]["swap_us"] == 50
    assert swapping["cached_share"] > without["cached_share"]


def test_drafts_are_tried(tmp_path, capsys) -> None:
    out = tmp_path / "out.json"
    assert main([*QUICK, "--rate", "0.1", "--output", "80", "--drafts", "0,0.9", "--out", str(out)]) == 0
    without, drafting = json.loads(out.read_text())["results"]["runs"]
    assert (without["name"], drafting["name"]) == ("no drafts", "drafts hold by 90%")
    assert drafting["end_to_end_ms"]["p50"] < without["end_to_end_ms"]["p50"] / 2
    head, *lines = capsys.readouterr().out.splitlines()
    assert "E2E p50" in head
    assert all(
        f"{run['end_to_end_ms']['p50']:.1f}" in line
        for run, line in zip((without, drafting), lines, strict=True)
    )


def test_a_trace_is_replayed(tmp_path, capsys) -> None:
    trace = tmp_path / "two.csv"
    trace.write_text("at,prompt_tokens,output_tokens\n0,30,5\n0.1,2000,7\n")
    out = tmp_path / "out.json"
    assert main(["simulate", "--trace", str(trace), "--pool-blocks", "100", "--out", str(out)]) == 0
    (run,) = json.loads(out.read_text())["results"]["runs"]
    assert (run["requests"], run["refused"], run["output_tokens"]) == (2, 1, 5)
    assert "1 requests can never fit" in capsys.readouterr().out


def test_a_trace_of_nothing_is_refused(tmp_path, capsys) -> None:
    trace = tmp_path / "none.jsonl"
    trace.touch()
    assert main(["simulate", "--trace", str(trace)]) == 2
    assert "no requests" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--policies", "lottery"], "no policy lottery"),
        (["--drafts", "2"], "a chance is from 0 to 1"),
        (["--cost", "/nowhere/cost.json"], "no cost of steps"),
        (["--trace", "/nowhere/trace.csv"], "No such file"),
        (["--trace", "/dev/null"], "must end in"),
    ],
)
def test_what_cannot_be_done_is_said(words, reason, capsys) -> None:
    assert main([*QUICK, *words]) == 2
    assert reason in capsys.readouterr().err
