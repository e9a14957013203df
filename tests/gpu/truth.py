#!/usr/bin/env python3
# run-tests: serial, not=asan, not=tsan
"""Truth on the GPU: what was planned, what is booked and what the driver says the process takes are the same.

At five budgets, from all there is down to almost the smallest plan: the driver's number, read from outside while it
trains, and the program's own (memory.used) are within 1 % or 32 MiB of the planned bytes on the device, and never above
the budget.

The host likewise: what the operating system says is resident of the process (/proc/PID/status, read from outside while it
trains; pinned memory is the process's own and counts) is within 1 % and HOST_SLACK of the planned bytes of the host, and a
host_budget holds. What libraries load of their kernels after the process was
measured is planned too (host_late_bytes); the slack is for pages of files that the system may drop and bring back.
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import gpu
import plim

MIB = gpu.MIB
SHARES = [None, 1.0, 0.5, 0.2, 0.03]  # of the way from the smallest plan to the one without a budget
STEPS = 200
HOST_SLACK = 32 * MIB


def check_host(run, end, name, host_budget=None):
    planned, booked = end.get("host_planned_peak", 0), end.get("host_ledger_peak", 0)
    tier = run.of("plan")[0]["host_bytes"]
    plim.ok(planned == booked > tier, f"{name}: of the host, booked {booked} = planned {planned}, {tier} of them its tier")
    if not plim.ok(run.resident, f"{name}: the system told what is resident, {len(run.resident)} times"): return
    peak, near = max(run.resident), 0.01 * planned + HOST_SLACK
    plim.ok(abs(peak - planned) <= near, f"{name}: resident {peak / MIB:.0f} MiB, planned of the host {planned / MIB:.0f} MiB "
                                         f"({(peak - planned) / MIB:+.1f} MiB, may differ by {near / MIB:.0f} MiB)")
    if host_budget:
        plim.ok(planned <= host_budget and peak <= host_budget + HOST_SLACK,
                f"{name}: neither is above the host_budget of {host_budget / MIB:.0f} MiB")


def check_tier(path):
    """State on the host: its bytes are the plan's and the system's, with and without a line."""
    pins = gpu.sets("state_tier=host")
    run = gpu.train(path, *pins, sample=True)
    if run.code: return
    end = run.of("end")[0]
    check_host(run, end, "state on the host")
    line = int(end["host_planned_peak"] + 64 * MIB)
    run = gpu.train(path, *pins, "--set", f"host_budget={line}", sample=True)
    if not run.code: check_host(run, run.of("end")[0], "under a host_budget", line)
    low = plim.run("train", path, *pins, "--set", f"host_budget={end['host_planned_peak'] // 2}", "--no-checkpoint", "-q")
    plim.ok(low.returncode == 3, f"half of it is refused: {low.stderr.strip()}")


def check(path, budget, name):
    limit = ["--budget", budget] if budget else []
    planned, result = plim.plan(path, *limit)
    if not plim.ok(planned and planned["fits"], f"{name}: plans {result.stderr.strip()}"): return
    run = gpu.train(path, *limit, sample=True)
    if run.code: return
    plan, end = run.of("plan")[0], run.of("end")[0]
    total, line, knobs = plan["planned_total"], plan["budget_bytes"], plan["knobs"]
    near = max(0.01 * total, 32 * MIB)
    own = [e["memory"]["used"] for e in run.of("step")]
    before = planned["peak_bytes"]["total"]  # another process: its context may be a little larger or smaller
    print(f"# {name}: {' '.join(f'{k}={v}' for k, v in knobs.items())}")
    if not plim.ok(len(run.samples) > 0, f"{name}: the driver told what the process takes, {len(run.samples)} times"): return
    plim.ok(end["ledger_peak"] == end["planned_peak"] == total, f"{name}: booked {end['ledger_peak']} = planned {total}")
    check_host(run, end, name)
    for who, peak in (("driver", max(run.samples)), ("memory.used", max(own)), ("plimsoll plan", before)):
        plim.ok(abs(peak - total) <= near, f"{name}: {who} {peak / MIB:.0f} MiB, planned {total / MIB:.0f} MiB "
                                           f"({(peak - total) / MIB:+.1f} MiB, {100 * (peak / total - 1):+.2f} %)")
        plim.ok(peak <= line + MIB, f"{name}: {who} is not above the budget of {line / MIB:.0f} MiB")  # nvidia-smi counts in MiB


plim.need_gpu()
with tempfile.TemporaryDirectory() as folder:
    path_ = plim.job(folder, **{**gpu.MIDDLE, "training__steps": STEPS, "data__max_length": 1024})
    roomy, result_ = plim.plan(path_)
    least = gpu.smallest(path_)
    if plim.ok(roomy and least, f"the job plans {result_.stderr.strip()}"):
        most = roomy["peak_bytes"]["total"]
        print(f"# smallest plan {least / MIB:.0f} MiB, without a budget {most / MIB:.0f} MiB")
        for share in SHARES:
            bytes_ = None if share is None else int(least + max(share * (most - least), 40 * MIB))
            check(path_, bytes_, "no budget" if share is None else f"budget {bytes_ / MIB:.0f} MiB")
        check_tier(path_)
plim.done()
