"""Runs in a session: pytest for the files that are named, and a report of each test.

Below coverage, each line is recorded with the test files that run it."""

import json
import sys

import pytest


class Reporter:
    def __init__(self):
        self.passed, self.failed = {}, {}
        coverage = sys.modules.get("coverage")
        self.coverage = coverage and coverage.Coverage.current()

    def pytest_runtest_logstart(self, nodeid, location):
        if self.coverage:
            self.coverage.switch_context(nodeid.partition("::")[0])

    def pytest_runtest_logreport(self, report):
        if report.outcome == "passed" and report.when == "call":
            self.passed[report.nodeid] = True
        elif report.outcome == "failed":
            lines = [each for each in str(report.longrepr).splitlines() if each.startswith("E  ")]
            self.failed[report.nodeid] = "\n".join(each[1:].strip() for each in lines[:4])[:600]

    def pytest_collectreport(self, report):
        if report.failed:
            self.failed[report.nodeid or "collection"] = str(report.longrepr)[-600:]


def main(target, *files):
    sys.path.insert(0, "/app")
    reporter = Reporter()
    plain = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist"]
    options = ["-o", "addopts=", "--rootdir=/app", "--tb=short", "--no-header"]
    pytest.main([*plain, *options, *files], plugins=[reporter])
    passed = [each for each in reporter.passed if each not in reporter.failed]
    with open(target, "w") as file:
        json.dump({"passed": passed, "failed": reporter.failed}, file)


main(*sys.argv[1:])
