"""A pytest plug-in: a line of JSON per test in the file $OUTCOMES."""

import json
import os
import time

SUITE_SECONDS = float(os.environ.get("SUITE_SECONDS", "3600"))
began = time.monotonic()
told = {}


def pytest_runtest_logreport(report):
    if report.outcome == "passed" and report.when != "call":
        return
    if report.nodeid in told and told[report.nodeid] != "passed":
        return
    told[report.nodeid] = report.outcome
    why = ""
    if report.outcome != "passed":
        crash = getattr(report.longrepr, "reprcrash", None)
        why = crash.message if crash else str(report.longrepr)
    with open(os.environ["OUTCOMES"], "a") as out:
        out.write(json.dumps({"name": report.nodeid, "end": report.outcome, "why": why[:400]}) + "\n")


def pytest_collectreport(report):
    if report.failed:
        with open(os.environ["OUTCOMES"], "a") as out:
            out.write(json.dumps({"name": report.nodeid, "end": "failed", "why": str(report.longrepr)[-400:]}) + "\n")


def pytest_runtest_setup(item):
    if time.monotonic() - began > SUITE_SECONDS:
        item.session.shouldstop = "the suite takes too long"
